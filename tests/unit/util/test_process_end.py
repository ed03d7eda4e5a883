"""Which signals end the process, and how SIGTERM ends the first one of a container."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from polybus._util import process_end

pytestmark = pytest.mark.native


def in_a_thread(function: Callable[[], None]) -> None:
    thread = threading.Thread(target=function)
    thread.start()
    thread.join()


@pytest.mark.parametrize(
    ("process", "handler", "where", "handled"),
    [
        (1, signal.SIG_DFL, "main", [143]),
        (1, signal.SIG_DFL, "thread", []),
        (1, signal.default_int_handler, "main", []),
        (2, signal.SIG_DFL, "main", []),
    ],
)
def test_sigterm_ends_process_1_at_once_where_nothing_handles_it(
    process: int, handler: Any, where: str, handled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses: list[int] = []
    monkeypatch.setattr(os, "getpid", lambda: process)
    monkeypatch.setattr(os, "_exit", statuses.append)
    monkeypatch.setattr(signal, "getsignal", lambda number: handler)
    monkeypatch.setattr(signal, "signal", lambda number, handle: handle(number, None))
    process_end.end_by_sigterm() if where == "main" else in_a_thread(process_end.end_by_sigterm)
    assert statuses == handled


@pytest.mark.parametrize(("handler", "more"), [(signal.SIG_IGN, ()), (signal.SIG_DFL, (signal.SIGHUP,))])
def test_a_closed_terminal_ends_the_process_unless_nohup_began_it(
    handler: Any, more: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "getsignal", lambda number: handler)
    assert process_end.ending_signals() == (signal.SIGINT, signal.SIGTERM, *more)
