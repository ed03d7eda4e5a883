"""request, stream, publish and subscribe, and `polybus serve` in processes of its own."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import httpx
import pytest
import trustme
from anyio.from_thread import start_blocking_portal

from polybus import Bus, DeadlineExceeded, connect
from polybus.cli.app import run
from polybus.cli.problems import describe
from polybus.speedups import ACTIVE
from tests.support import free_port
from tests.unit.cli.support import COMMAND, next_line, one_line, publishing, serve_process, serving, started


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
        (["nobody.there"], "no handler for 'nobody.there'"),
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


@pytest.mark.parametrize(("command", "subject"), [("request", "greet"), ("stream", "count")])
def test_where_the_body_was_left_out_the_refusal_says_so(
    command: str, subject: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, said = one_line(capsys, command, url, subject)
    assert status == 1 and "got `null`; no BODY was given, for example " in said
    status, said = one_line(capsys, command, url, subject, "{}")
    assert status == 1 and "does not fit" in said and "BODY" not in said


def test_headers_on_a_wire_without_any_are_status_2(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, "request", url, "greet", "--header", "a: b")
    assert status == 2
    assert "ws://" in text


def test_subscribe_prints_what_others_publish_and_leaves_after_count(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["publish", url, "news.today", "[1]"]) == 0
    with publishing(connect(url)):
        assert run(["subscribe", url, "news.*", "--json", "--count", "2"]) == 0
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(message["subject"], message["body"]) for message in printed] == [("news.today", {"n": 1})] * 2


def test_an_interrupted_subscribe_leaves_in_order(url: str) -> None:
    with publishing(connect(url)), started("subscribe", url, "news.*", "--json") as listener:
        assert json.loads(next_line(listener))["subject"] == "news.today"
        listener.send_signal(signal.SIGTERM)
        _, err = listener.communicate(timeout=60)
    assert (listener.returncode, err) == (0, "")


def test_serve_takes_several_addresses_of_every_kind_and_further_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    addresses = (f"ubre+unix://{tmp_path / 'bus.sock'}", "ubre+ws://127.0.0.1:0/bus?format=binary")
    with serve_process(tmp_path, *addresses, "--host", "bus.example") as (tcp, process):
        unix, web = (next_line(process).split()[1] for _ in addresses)
        for url, *more in ((tcp,), (unix,), (web, "--header", "Host: bus.example")):
            assert run(["request", url, "greet", '"Ann"', *more]) == 0
            assert json.loads(capsys.readouterr().out) == "Hello, Ann"
        status, text = one_line(capsys, "request", web, "greet", '"Ann"', "--header", "Host: evil.example")
        assert status == 1 and "evil.example" in text


def test_tls_with_the_authority_in_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    options = ("--cert", str(tmp_path / "server.pem"), "--key", str(tmp_path / "server.pem"))
    with serve_process(tmp_path, *options, url="ubre+tls://127.0.0.1:0") as (url, _):
        assert run(["request", url, "greet", '"Ann"', "--ca", str(tmp_path / "ca.pem")]) == 0
        assert json.loads(capsys.readouterr().out) == "Hello, Ann"
        status, text = one_line(capsys, "request", url, "greet", '"Ann"')
        assert status == 1 and "--ca FILE" in text


@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_a_server_that_wants_a_client_certificate_gets_it_by_cert_and_key(
    scheme: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    authority, bus = trustme.CA(), Bus()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(tls)
    tls.verify_mode = ssl.CERT_REQUIRED
    ours = authority.issue_cert("ops@example.org")
    ours.private_key_pem.write_to_path(tmp_path / "key.pem")
    ours.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    trust = ("--ca", str(tmp_path / "ca.pem"))
    shown = (*trust, "--cert", str(tmp_path / "cert.pem"), "--key", str(tmp_path / "key.pem"))

    @bus.handle("greet")
    async def greet(name: str) -> str:
        return f"Hello, {name}"

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(bus.serve(f"ubre+{scheme}://127.0.0.1:0", tls=tls)) as listener,
    ):
        status, _ = one_line(capsys, "request", listener.url, "greet", '"Ann"', *trust)
        assert status == 1
        assert run(["doctor", listener.url, *trust]) == 1
        assert "--cert FILE --key FILE" in capsys.readouterr().err
        assert run(["request", listener.url, "greet", '"Ann"', *shown]) == 0
        assert json.loads(capsys.readouterr().out) == "Hello, Ann"
        assert run(["doctor", listener.url, *shown]) == 0


def test_doctor_warns_of_a_certificate_that_expires_soon(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=3)).configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Bus().serve("ubre+tls://127.0.0.1:0", tls=tls)) as listener,
    ):
        assert run(["doctor", listener.url, "--ca", str(tmp_path / "ca.pem")]) == 0
    out, err = capsys.readouterr()
    assert "valid for 2 more days; renew it" in " ".join(err.split())
    assert out.endswith(f"runs its speedups in {'C' if ACTIVE else 'Python'}.\n")


def test_wait_goes_on_until_the_server_is_there(tmp_path: Path) -> None:
    late = f"ubre+unix://{tmp_path}/late.sock"
    with started("request", late, "greet", '"Ann"', "--wait", "60") as early, serving(late):
        out = early.communicate(timeout=60)[0]
    assert (early.returncode, json.loads(out)) == (0, "Hello, Ann")


def test_a_reader_that_leaves_early_is_no_failure(url: str) -> None:
    program = f"{' '.join(COMMAND)} subscribe {url} 'news.*' --json | head -n 1"
    with publishing(connect(url)):
        done = subprocess.run(program, shell=True, capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_serve_goes_on_answering_for_the_delay_while_it_says_that_it_is_not_ready(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    health = f"http://127.0.0.1:{free_port()}"
    with serve_process(tmp_path, "--health", health, "--delay", "600") as (url, process):
        assert httpx.get(f"{health}/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{health}/readyz").status_code == 200:
            pass
        assert run(["request", url, "greet", '"Ann"']) == 0
        assert "Hello, Ann" in capsys.readouterr().out
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_doctor_says_on_a_fabric_that_nobody_has_an_address_and_how_to_name_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with serving("up+zenoh://127.0.0.1:0") as url:
        us = f"{url.partition('?')[0]}?entity=//cli/1/1"
        assert run(["doctor", us, "--timeout", "1"]) == 1
        err = capsys.readouterr().err
        assert "no answer from //cli/1/1/7FFF within 1 s: on a fabric" in err
        assert "name the peer in the URL, as in ?peer=//device1/10AB/3" in err
        assert run(["doctor", f"{us}&peer=//polybus/1/1"]) == 0


def test_doctor_asks_for_an_address_where_no_name_is_a_subject(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("up+tcp://127.0.0.1:0") as url:
        assert run(["doctor", url]) == 0  # which asks for an address: no name has a number there
        assert "//polybus/1/1/7FFF: no handler, as expected" in capsys.readouterr().out


def test_a_subject_is_a_number_where_the_protocol_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    with serving("csb+tcp://127.0.0.1:0") as url:
        for subject in ("65537", "0x00010001"):
            assert run(["request", url, subject, "[1]"]) == 0
            assert json.loads(capsys.readouterr().out) == {"numbered": [1]}
            assert run(["doctor", url, "--subject", subject, "--body", "[1]"]) == 0
            assert "numbered" in capsys.readouterr().out
    with serving() as url:
        assert run(["request", url, "7", "[1]"]) == 0
        assert json.loads(capsys.readouterr().out) == {"text": [1]}


# -- polybus stream --------------------------------------------------------------------------------------------------------


def test_items_are_lines_of_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "count", "3"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"number": number} for number in range(3)]


def test_no_more_items_are_read_than_are_asked_for(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "count", "100000", "--count", "2"]) == 0
    assert capsys.readouterr().out.count("\n") == 2


def test_a_stream_that_fails_is_status_1_after_its_items(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "count", "2"]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") == 2 and "there is no third" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "subject", "says"),
    [("request", "count", "use polybus stream"), ("stream", "greet", "use polybus request")],
)
def test_the_wrong_one_of_the_two_names_the_other(
    command: str, subject: str, says: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = one_line(capsys, command, url, subject, "1" if subject == "count" else '"Ann"')
    assert status == 1 and says in text


def test_a_stream_that_takes_too_long_is_status_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "tick", "--timeout", "0.2"]) == 1
    out, err = capsys.readouterr()
    assert out == "1\n" and "--timeout" in err


@pytest.mark.parametrize("where", ["local", "remote"])
def test_whoever_says_first_that_the_time_is_over_the_option_is_named(where: Literal["local", "remote"]) -> None:
    text, status = describe(DeadlineExceeded("tick", 0.2, where, "the deadline passed" if where == "remote" else ""))
    assert status == 1 and "--timeout" in text


def test_ctrl_c_is_the_orderly_end_of_a_stream(url: str) -> None:
    with started("stream", url, "tick") as process:
        assert next_line(process) == "1"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
