"""serve, request, publish and subscribe against each other, each in a process of its own."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from polybus.cli.app import run
from tests.support import free_port
from tests.unit.cli.support import APP, COMMAND, one_line, serving


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with serving(tmp_path_factory.mktemp("app"), "--relay", "news.>") as (real, _):
        yield real


def test_request_prints_the_answer_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["request", url, "greet", '"Ann"']) == 0
    assert json.loads(capsys.readouterr().out) == "Hello, Ann"


@pytest.mark.parametrize("body", ["null", "[1,2.5,{}]", '{"a":{"b":"ü"}}', "true", '""'])
def test_request_carries_any_json_there_and_back(body: str, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["request", url, "echo", body, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == json.loads(body)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody.there"], "nobody handles 'nobody.there'"),
        (["vault"], "not you"),
        (["greet", "7"], "does not fit"),
        (["break"], "internal error"),
        (["greet", '"Ann"', "--timeout", "0"], "greet"),
    ],
)
def test_a_peer_that_says_no_is_status_1_and_one_line(
    arguments: list[str], says: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = one_line(capsys, "request", url, *arguments)
    assert status == 1
    assert says in text
    assert "secret" not in text


def test_where_the_body_was_left_out_the_refusal_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stream = """
@bus.handle("count")
async def count(to: int) -> AsyncIterator[int]:
    yield to
"""
    with serving(tmp_path, app="from collections.abc import AsyncIterator\n" + APP + stream) as (real, _):
        for command, subject in (("request", "greet"), ("stream", "count")):
            status, said = one_line(capsys, command, real, subject)
            assert status == 1 and "got `null`; no BODY was given, for example " in said
            status, said = one_line(capsys, command, real, subject, "{}")
            assert status == 1 and "does not fit" in said and "BODY" not in said


def test_headers_on_a_wire_without_any_are_status_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, "request", url, "greet", "--header", "a: b")
    assert status == 2
    assert "ws://" in text


def test_subscribe_prints_what_others_publish_and_leaves_after_count(tmp_path: Path) -> None:
    with serving(tmp_path, "--relay", "news.>") as (url, _):
        command = [*COMMAND, "subscribe", url, "news.*", "--json", "--count", "2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listener:
            out = _publish_until_ended(listener, url)
        assert listener.returncode == 0
    printed = [json.loads(line) for line in out.splitlines()]
    assert [(message["subject"], message["body"]) for message in printed] == [("news.today", {"n": 1})] * 2


def _publish_until_ended(listener: subprocess.Popen[str], url: str) -> str:
    # Nothing tells from outside that a subscription stands: publish until it has heard enough.
    while True:
        assert run(["publish", url, "news.today", '{"n": 1}']) == 0
        try:
            return str(listener.communicate(timeout=0.1)[0])
        except subprocess.TimeoutExpired:
            continue


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_subscribe_leaves_in_order(number: signal.Signals, tmp_path: Path) -> None:
    with serving(tmp_path, "--relay", "news.>") as (url, _):
        command = [*COMMAND, "subscribe", url, "news.*", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listener:
            try:
                first = _first_line(listener, url)
                listener.send_signal(number)
                rest, err = listener.communicate(timeout=60)
            finally:
                listener.kill()
    assert json.loads(first)["subject"] == "news.today"
    assert (listener.returncode, err) == (0, ""), rest


def _first_line(listener: subprocess.Popen[str], url: str) -> str:
    import threading

    lines: list[str] = []
    assert listener.stdout is not None
    reader = threading.Thread(target=lambda: lines.append(listener.stdout.readline()))  # type: ignore[union-attr]
    reader.start()
    while reader.is_alive():
        assert run(["publish", url, "news.today"]) == 0
        reader.join(timeout=0.1)
    return lines[0]


def test_serve_takes_several_addresses_of_every_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    socket = tmp_path / "bus.sock"
    with serving(tmp_path, f"ubre+unix://{socket}", "ubre+ws://127.0.0.1:0/bus?format=binary") as (tcp, process):
        assert process.stdout is not None
        others = [process.stdout.readline().split()[1] for _ in range(2)]
        for url in (tcp, *others):
            assert run(["request", url, "greet", '"Ann"']) == 0
            assert json.loads(capsys.readouterr().out) == "Hello, Ann"


def test_tls_with_the_authority_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made: Any = pytest.importorskip("polybus.demo.certificates").make_certificate(tmp_path)
    if isinstance(made, str):
        pytest.skip(made)
    options = ["--cert", str(made.certificate), "--key", str(made.key)]
    with serving(tmp_path, *options, url="ubre+tls://127.0.0.1:0") as (url, _):
        assert run(["request", url, "greet", '"Ann"', "--ca", str(made.ca)]) == 0
        assert json.loads(capsys.readouterr().out) == "Hello, Ann"
        status, text = one_line(capsys, "request", url, "greet", '"Ann"')
        assert status == 1
        assert "--ca FILE" in text


def test_wait_goes_on_until_the_server_is_there(tmp_path: Path) -> None:
    socket = tmp_path / "late.sock"
    command = [*COMMAND, "request", f"ubre+unix://{socket}", "greet", '"Ann"', "--wait", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as early:
        with serving(tmp_path, url=f"ubre+unix://{socket}"):
            out = early.communicate(timeout=60)[0]
    assert (early.returncode, json.loads(out)) == (0, "Hello, Ann")


def test_a_reader_that_leaves_early_is_no_failure(url: str) -> None:
    program = f"{' '.join(COMMAND)} subscribe {url} 'news.*' --json | head -n 1"
    with subprocess.Popen(program, shell=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as pipeline:
        _first_line(pipeline, url)
        while pipeline.poll() is None:
            assert run(["publish", url, "news.today"]) == 0
        assert pipeline.stderr is not None
        assert pipeline.stderr.read() == ""


def test_serve_knows_further_hosts_behind_a_proxy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for options, status in ((["--host", "bus.example"], 0), ([], 1)):
        with serving(tmp_path, *options, url="ubre+ws://127.0.0.1:0/bus") as (url, _):
            assert run(["request", url, "greet", '"Ann"', "--header", "Host: bus.example"]) == status
    assert "bus.example" in capsys.readouterr().err


def test_serve_goes_on_answering_for_the_delay_while_it_says_that_it_is_not_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    health = f"http://127.0.0.1:{free_port()}"
    with serving(tmp_path, "--health", health, "--delay", "600") as (url, process):
        assert httpx.get(f"{health}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{health}/readyz").status_code == 200:
            pass
        assert run(["request", url, "greet", '"Ann"']) == 0
        assert "Hello, Ann" in capsys.readouterr().out
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_doctor_says_on_a_fabric_that_nobody_has_an_address_and_how_to_name_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with serving(tmp_path, url="up+zenoh://127.0.0.1:0") as (url, _):
        us = f"{url.partition('?')[0]}?entity=//cli/1/1"
        assert run(["doctor", us, "--timeout", "1"]) == 1
        err = capsys.readouterr().err
        assert "nobody answered to //cli/1/1/7FFF for 1 s: on a fabric" in err
        assert "say in the URL who is asked, as in ?peer=//device1/10AB/3" in err
        assert run(["doctor", f"{us}&peer=//polybus/1/1"]) == 0


def test_doctor_asks_for_an_address_where_no_name_is_a_subject(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path, url="up+tcp://127.0.0.1:0") as (url, _):
        assert run(["doctor", url]) == 0  # which asks for an address: no name has a number there
        assert "//polybus/1/1/7FFF: nobody handles it, as expected" in capsys.readouterr().out


def test_a_subject_is_a_number_where_the_protocol_has_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with serving(tmp_path, url="csb+tcp://127.0.0.1:0") as (url, _):
        for subject in ("65537", "0x00010001"):
            assert run(["request", url, subject, "[1]"]) == 0
            assert json.loads(capsys.readouterr().out) == {"numbered": [1]}
            assert run(["doctor", url, "--subject", subject, "--body", "[1]"]) == 0
            assert "numbered" in capsys.readouterr().out
    with serving(tmp_path, url="ubre+tcp://127.0.0.1:0") as (url, _):
        assert run(["request", url, "7", "[1]"]) == 0
        assert json.loads(capsys.readouterr().out) == {"text": [1]}
