"""request, stream, publish and subscribe, and `polybus serve` in processes of its own."""

import json
import signal
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

import httpx
import pytest
import trustme

from polybus import DeadlineExceeded, connect
from polybus.cli.app import run
from polybus.cli.problems import describe
from polybus.speedups import ACTIVE
from tests.support import BOUND, free_port
from tests.unit.cli.support import Cli, next_line, publishing, serve_process, serving, started


@pytest.mark.parametrize("body", ["null", "[1,2.5,{}]", '{"a":{"b":"ü"}}', "true", '""', '"Ann"'])
def test_request_carries_any_json_there_and_back(body: str, url: str, cli: Cli) -> None:
    out = cli.out("request", url, "echo", body, "--json")
    assert out.count("\n") == 1
    assert json.loads(out) == json.loads(body)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nobody.there"], "no handler for 'nobody.there'"),
        (["vault"], "not you"),
        (["greet", "7"], "invalid body"),
        (["break"], "internal error"),
        (["greet", '"Ann"', "--timeout", "0"], "greet"),
    ],
)
def test_a_peer_that_says_no_is_status_1_and_one_line(arguments: list[str], says: str, url: str, cli: Cli) -> None:
    text = cli.line(1, "request", url, *arguments)
    assert says in text
    assert "secret" not in text


@pytest.mark.parametrize(("command", "subject"), [("request", "greet"), ("stream", "count")])
def test_where_the_body_was_left_out_the_refusal_says_so(command: str, subject: str, url: str, cli: Cli) -> None:
    assert "got `null`; no BODY was given, for example " in cli.line(1, command, url, subject)
    said = cli.line(1, command, url, subject, "{}")
    assert "invalid body" in said and "BODY" not in said


def test_headers_on_a_wire_without_any_are_status_2(url: str, cli: Cli) -> None:
    assert "ws://" in cli.line(2, "request", url, "greet", "--header", "a: b")


def test_subscribe_prints_what_others_publish_and_leaves_after_count(url: str, cli: Cli) -> None:
    assert run(["publish", url, "news.today", "[1]"]) == 0
    with publishing(connect(url)):
        printed = cli.rows("subscribe", url, "news.*", "--json", "--count", "2")
    assert [(message["subject"], message["body"]) for message in printed] == [("news.today", {"n": 1})] * 2


def test_serve_takes_several_addresses_of_every_kind_and_further_hosts(tmp_path: Path, cli: Cli) -> None:
    addresses = (f"ubre+unix://{tmp_path / 'bus.sock'}", "ubre+ws://127.0.0.1:0/bus?format=binary")
    with serve_process(tmp_path, *addresses, "--host", "bus.example") as (tcp, process):
        unix, web = (next_line(process).split()[1] for _ in addresses)
        for url, *more in ((tcp,), (unix,), (web, "--header", "Host: bus.example")):
            assert cli.json("request", url, "greet", '"Ann"', *more) == "Hello, Ann"
        assert "evil.example" in cli.line(1, "request", web, "greet", '"Ann"', "--header", "Host: evil.example")


@pytest.mark.parametrize("scheme", ["tls", "wss"])
def test_a_client_certificate_is_shown_by_cert_and_key(
    scheme: str, suspicious: ssl.SSLContext, tmp_path: Path, cli: Cli
) -> None:
    trust = ("--ca", str(tmp_path / "ca.pem"))
    shown = (*trust, "--cert", str(tmp_path / "cert.pem"), "--key", str(tmp_path / "key.pem"))
    with serving(f"ubre+{scheme}://127.0.0.1:0", tls=suspicious) as url:
        cli.line(1, "request", url, "greet", '"Ann"', *trust)
        assert "--cert FILE --key FILE" in cli.err(1, "doctor", url, *trust)
        assert cli.json("request", url, "greet", '"Ann"', *shown) == "Hello, Ann"
        assert run(["doctor", url, *shown]) == 0


def test_doctor_warns_of_a_certificate_that_expires_soon(tmp_path: Path, cli: Cli) -> None:
    authority, tls = trustme.CA(), ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=3)).configure_cert(tls)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with serving("ubre+tls://127.0.0.1:0", tls=tls) as url:
        out, err = cli.both(0, "doctor", url, "--ca", str(tmp_path / "ca.pem"))
    assert "valid for 2 more days; renew it" in " ".join(err.split())
    assert out.endswith(f"Speedups: {'C' if ACTIVE else 'Python'}.\n")


def test_wait_goes_on_until_the_server_is_there(tmp_path: Path) -> None:
    late = f"ubre+unix://{tmp_path}/late.sock"
    with started("request", late, "greet", '"Ann"', "--wait", "60") as early, serving(late):
        out = early.communicate(timeout=60)[0]
    assert (early.returncode, json.loads(out)) == (0, "Hello, Ann")


def test_serve_goes_on_answering_for_the_delay_while_it_says_that_it_is_not_ready(tmp_path: Path, cli: Cli) -> None:
    health = f"http://127.0.0.1:{free_port()}"
    with serve_process(tmp_path, "--health", health, "--delay", "600") as (url, process):
        assert httpx.get(f"{health}/readyz", timeout=BOUND).status_code == 200
        process.send_signal(signal.SIGTERM)
        while httpx.get(f"{health}/readyz", timeout=BOUND).status_code == 200:
            pass
        assert "Hello, Ann" in cli.out("request", url, "greet", '"Ann"')
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_doctor_says_on_a_fabric_that_nobody_has_an_address_and_how_to_name_one(cli: Cli) -> None:
    with serving("up+zenoh://127.0.0.1:0") as url:
        us = f"{url.partition('?')[0]}?entity=//cli/1/1"
        err = cli.err(1, "doctor", us, "--timeout", "1")
        assert "no answer from //cli/1/1/7FFF within 1 s: a fabric" in err
        assert "name the peer in the URL, as in ?peer=//device1/10AB/3" in err
        assert run(["doctor", f"{us}&peer=//polybus/1/1"]) == 0


def test_doctor_asks_for_an_address_where_no_name_is_a_subject(cli: Cli) -> None:
    with serving("up+tcp://127.0.0.1:0") as url:
        assert "//polybus/1/1/7FFF: no handler, as expected" in cli.out("doctor", url)  # no name has a number there


def test_a_subject_is_a_number_where_the_protocol_has_them(cli: Cli) -> None:
    with serving("csb+tcp://127.0.0.1:0") as url:
        for subject in ("65537", "0x00010001"):
            assert cli.json("request", url, subject, "[1]") == {"numbered": [1]}
            assert "numbered" in cli.out("doctor", url, "--subject", subject, "--body", "[1]")
    with serving() as url:
        assert cli.json("request", url, "7", "[1]") == {"text": [1]}


# -- polybus stream --------------------------------------------------------------------------------------------------------


def test_items_are_lines_of_json(url: str, cli: Cli) -> None:
    assert cli.rows("stream", url, "count", "3") == [{"number": number} for number in range(3)]
    assert cli.out("stream", url, "count", "100000", "--count", "2").count("\n") == 2


def test_a_stream_that_fails_is_status_1_after_its_items(url: str, cli: Cli) -> None:
    out, err = cli.both(1, "stream", url, "count", "2")
    assert out.count("\n") == 2 and "there is no third" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "subject", "says"), [("request", "count", "use polybus stream"), ("stream", "greet", "use polybus request")]
)
def test_the_wrong_one_of_the_two_names_the_other(command: str, subject: str, says: str, url: str, cli: Cli) -> None:
    assert says in cli.line(1, command, url, subject, "1" if subject == "count" else '"Ann"')


def test_a_stream_that_takes_too_long_is_status_1(url: str, cli: Cli) -> None:
    out, err = cli.both(1, "stream", url, "tick", "--timeout", "1")
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
