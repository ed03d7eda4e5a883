"""What `polybus.run` says: where it serves, once, and why it cannot."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import ssl
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

import polybus
from polybus import Bus, LocalProtocolError
from polybus._core.bus import runner
from polybus._core.bus.runner import announce
from tests.unit.cluster.in_a_thread import running_cluster

URL = "ubre+memory://run-messages"


@pytest.mark.anyio
async def test_run_in_a_running_event_loop_names_what_to_use_there() -> None:
    with pytest.raises(LocalProtocolError, match=r"runs here already: use `async with bus\.serve\(url\)"):
        polybus.run(Bus(), URL)


@pytest.mark.parametrize(
    ("missing", "options", "says"),
    [
        ("uvloop", {"uvloop": True}, r"pip install 'polybus\[uvloop\]'"),
        ("trio", {"backend": "trio"}, "pip install trio"),
    ],
)
def test_an_event_loop_that_is_not_installed_is_told_with_what_installs_it(
    missing: str, options: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None if name == missing else importlib.util.find_spec(name))
    with pytest.raises(ImportError, match=says):
        polybus.run(Bus(), URL, **options)  # type: ignore[arg-type]


def test_a_context_for_tls_is_for_the_connections_where_a_bus_connects_by_its_url() -> None:
    with pytest.raises(LocalProtocolError, match="tls= given for tcp://"):
        polybus.run(Bus(), "nats+tcp://127.0.0.1:9", tls=ssl.create_default_context())


def test_an_unknown_backend_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="asyncio or trio"):
        polybus.run(Bus(), URL, backend="twisted")


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_where_it_serves_is_said_once_in_the_log_or_on_stdout(
    level: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level, "polybus"):
        announce(URL)
    logged = [record.getMessage() for record in caplog.records]
    printed = capsys.readouterr().out
    assert (logged, printed) == (([f"serving {URL}"], "") if level == logging.INFO else ([], f"serving {URL}\n"))


class EndsAt(logging.Handler):
    """Ends the program with the line that has these words, as Ctrl-C would, and keeps what was logged."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._words = words

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(f"{record.levelname} {record.getMessage()}")
        if self._words in self.lines[-1]:
            os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def ended_at(words: str, caplog: pytest.LogCaptureFixture) -> Iterator[EndsAt]:
    handler = EndsAt(words)
    logger = logging.getLogger("polybus")
    logger.addHandler(handler)
    try:
        with caplog.at_level(logging.INFO, "polybus"):
            yield handler
    finally:
        logger.removeHandler(handler)


def test_a_program_at_no_address_of_its_own_says_when_it_is_ready(caplog: pytest.LogCaptureFixture) -> None:
    with running_cluster() as running, ended_at("ready", caplog) as ends:
        polybus.run(Bus(cluster=running.url))
    assert [line for line in ends.lines if "ready" in line] == [
        "INFO ready, at no address of its own: requests come over its cluster, or the links that it has opened"
    ]


def test_a_program_that_nobody_can_reach_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with ended_at("no client", caplog) as ends:
        polybus.run(Bus())
    assert ends.lines[0].startswith("WARNING no client can reach this program: run() has no URL")


def test_a_program_with_a_url_can_be_reached(caplog: pytest.LogCaptureFixture) -> None:
    with ended_at("serving", caplog) as ends:
        polybus.run(Bus(), URL)
    assert ends.lines == [f"INFO serving {URL}", "INFO SIGINT, draining"]
