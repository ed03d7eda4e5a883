"""Inside Pyodide: runs pytest over the unit tests of the core, on an event loop without sockets.

Pyodide's own loop belongs to the page and cannot run until a test ends; `page.py` beside this file runs on that one.
"""

import asyncio
import os
import sys
import time
from typing import Any

import pytest


class NoSockets:
    """What an event loop selects from where nothing but time passes."""

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set: nothing would ever happen again")
        if timeout > 0:
            time.sleep(timeout)
        return []

    def close(self) -> None:
        pass


class TimerLoop(asyncio.BaseEventLoop):
    """Callbacks and timers, and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = NoSockets()

    def _process_events(self, event_list: list[Any]) -> None:
        pass

    def _write_to_self(self) -> None:
        pass  # there is one thread, and it is awake


class Policy:
    """Makes that loop the one of `asyncio.Runner`, and so of the tests."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        return TimerLoop()

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        raise RuntimeError("no loop is set")

    def set_event_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        pass


setattr(asyncio.events, "_event_loop_policy", Policy())  # noqa: B010  # the public way is deprecated, and abstract
asyncio._set_running_loop(None)  # Pyodide's own always counts as running
os.chdir("/repository")
os.environ["POLYBUS_FULL"] = "1"  # of each class the one loop that is left here
options = ["-p", "no:cacheprovider", "-c", "tests/integration/pyodide/inside.ini", "--rootdir", ".", "-m", "not native"]
options += [
    "-W",
    "ignore:Module already imported:pytest.PytestAssertRewriteWarning",
]  # by the page's program, which was here before
left_out = "not trio and not uvloop and not OverTcp and not OverWebSocket and not OverUnix and not asyncio-thread"
int(pytest.main([*options, "-k", left_out, *sys.argv[1:]]))
