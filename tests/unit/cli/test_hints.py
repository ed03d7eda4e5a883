"""What the commands advise when a step fails, and which engine they take."""

import errno

import pytest

from polybus import ConnectFailed, Disconnected, Forbidden, LocalProtocolError, Unauthorized
from polybus.cli import analyse
from polybus.cli.analyse import LARGE, EngineName, choose
from polybus.cli.doctor import hint_of
from polybus.cli.problems import NATS_CREDENTIALS, UsageError, describe


@pytest.mark.parametrize(
    ("error", "step", "scheme", "protocol", "advice"),
    [
        (OSError(errno.ECONNRESET, "reset"), "upgrade", "ws", "ubre", "reset the connection: check its log"),
        (OSError("Multiple exceptions: ..."), "connect", "tcp", "ubre", "start the server, or correct host and port"),
        (OSError("odd"), "tls", "tls", "ubre", "try the URL without TLS"),
        (OSError("the server answered in HTTP"), "handshake", "tcp", "csb", "try csb+ws:// and the path of the bus"),
        (Disconnected("received HTTP instead of length-prefixed frames: use ws://", "u", True), "handshake", "tcp", "ubre", ""),
        (OSError("odd"), "handshake", "tcp", "nats", "4222 by default"),
        (OSError("odd"), "handshake", "tcp", "ubre", "does it require TLS (tls, wss)?"),
        (OSError("odd"), "handshake", "tls", "ubre", "format=, dialect="),
        (OSError("odd"), "listen", "memory", "ubre", "is the server running there, with this name?"),
        (TimeoutError(), "resolve", "tcp", "ubre", "the DNS server does not answer"),
        (
            ConnectFailed("u", "timed out", errno=errno.ETIMEDOUT),
            "drain",
            "tcp",
            "ubre",
            "the server does not respond: check its log",
        ),
        (Unauthorized("no"), "handshake", "tcp", "nats", NATS_CREDENTIALS),
        (Forbidden("403: it does not say why"), "upgrade", "ws", "ubre", "compare the path"),
        (Forbidden("origin https://a.example is not let in"), "upgrade", "ws", "ubre", "accepts the origins in its origins="),
        (Forbidden("this server accepts no clients"), "upgrade", "ws", "ubre", "has no authenticate"),
        (Forbidden("accepts only clients on its own machine"), "upgrade", "ws", "ubre", "a proxy reports that"),
        (Forbidden("something else"), "upgrade", "ws", "ubre", "is not allowed: ask the operator of the server"),
        (ConnectFailed("u", "the server answered 404", status=404), "upgrade", "ws", "ubre", "no bus at this path"),
        (ConnectFailed("u", "the server answered 502 closed", status=502), "upgrade", "ws", "ubre", "the proxy responds"),
        (ConnectFailed("u", "the server answered 400", status=400), "upgrade", "ws", "ubre", "does a proxy drop the Upgrade"),
        (ConnectFailed("u", "the server answered 500", status=500), "upgrade", "ws", "ubre", "but not as a bus"),
        (ConnectFailed("u", "it closed the connection"), "upgrade", "ws", "ubre", "require TLS (wss)"),
        (ConnectFailed("u", "connection reset", errno=errno.ECONNRESET), "upgrade", "ws", "ubre", "reset the connection"),
        (ConnectFailed("u", "no such name", errno=errno.ECONNREFUSED), "open", "memory", "ubre", "with this name?"),
        (ConnectFailed("u", "the server closed the connection during"), "upgrade", "wss", "ubre", "--cert FILE"),
        (ConnectFailed("u", "the peer closed the connection"), "handshake", "tls", "ubre", "--cert FILE"),
        (ConnectFailed("u", "the peer closed the connection"), "handshake", "tls", "nats", "--cert FILE"),
    ],
)
def test_a_step_that_fails_is_followed_by_advice(error: Exception, step: str, scheme: str, protocol: str, advice: str) -> None:
    hint = hint_of(error, step, scheme, protocol)
    assert advice in hint if advice else not hint


@pytest.mark.parametrize(
    ("error", "text", "status"),
    [
        (ImportError("it needs rich: pip install 'polybus[cli]'"), "pip install 'polybus[cli]'", 2),
        (ValueError("no such form"), "no such form", 2),
        (PermissionError("not yours"), "not yours", 1),
        (Disconnected("gone", "tcp://127.0.0.1:1", True), "gone", 1),
        (Unauthorized("who is that?"), "who is that?", 1),
        (LocalProtocolError("workers=2: that of run(workers=...)"), "--workers 2: that of run(workers=...)", 2),
    ],
)
def test_errors_become_a_line_and_an_exit_status(error: Exception, text: str, status: int) -> None:
    said, given = describe(error)
    assert text in said
    assert given == status


def test_a_defect_of_ours_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        describe(ZeroDivisionError("1/0"))
    with pytest.raises(ImportError):
        describe(ImportError("no module named polybus.typo"))


@pytest.mark.parametrize(
    ("asked", "size", "master", "installed", "engine", "reason"),
    [
        ("duckdb", 1, "", {"duckdb"}, "duckdb", "set by --engine"),
        ("auto", 1, "local[2]", {"duckdb"}, "spark", "implied by --master"),
        ("auto", LARGE - 1, "", {"duckdb", "pyspark"}, "duckdb", "Spark is used from 512 MiB on"),
        ("auto", LARGE - 1, "", {"pyspark"}, "spark", "because DuckDB is not installed"),
        ("auto", LARGE, "", {"duckdb", "pyspark"}, "spark", "below 512 MiB, DuckDB"),
        ("auto", LARGE, "", {"duckdb"}, "duckdb", "because PySpark is not installed"),
    ],
)
def test_the_engine_is_chosen_by_size_and_by_what_is_installed(
    asked: EngineName, size: int, master: str, installed: set[str], engine: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(analyse, "find_spec", lambda name: name if name in installed else None)
    chosen, why = choose(asked, size, master)
    assert (chosen, reason in why) == (engine, True), why


def test_a_place_of_spark_and_another_engine_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="leave one of them out"):
        choose("duckdb", 1, "local")
