"""The log, the signals and the printed addresses of commands that run until a signal."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio

from ..plugins.tools import ending_signals
from .problems import say


def start_log(level: str = "WARNING", who: str = "") -> None:
    logging.basicConfig(level=level, format=f"%(asctime)s %(levelname)s{who} %(name)s: %(message)s")


@contextmanager
def ending() -> Iterator[Callable[[], Awaitable[None]]]:
    """Catch the signals that ask this process to end. Yields a function that waits for the next one."""
    with anyio.open_signal_receiver(*ending_signals()) as signals:
        told = False

        async def signalled() -> None:
            nonlocal told
            async for number in signals:
                if not (told and number.name == "SIGHUP"):  # a closing terminal sends it twice
                    told = True
                    return

        yield signalled


async def race(*functions: Callable[[], Awaitable[object]]) -> None:
    """Run functions until the first of them returns."""
    async with anyio.create_task_group() as group:

        async def run(function: Callable[[], Awaitable[object]]) -> None:
            await function()
            group.cancel_scope.cancel()

        for function in functions:
            group.start_soon(run, function)


def announce(text: str) -> None:
    """Print an address to stdout. If this fails, for example on a full disk, print it and all later output to stderr."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        say(f"cannot write to stdout ({error.strerror}): continuing on stderr")
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
            sys.stdout.flush()  # flush its buffer
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        print(text, flush=True)
