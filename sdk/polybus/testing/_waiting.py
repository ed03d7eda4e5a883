"""Waits for conditions that no event signals. Error messages show the condition and its variables."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio

PATIENCE = 30.0
"""Seconds to wait for a condition, long enough for a slow, busy machine."""

_LONGEST_PAUSE = 0.02

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 600
_brief.maxdict = _brief.maxlist = _brief.maxset = 40


async def eventually(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until a function or coroutine function returns a true value. Assertions in the function may fail until then.

    Raises:
        AssertionError: On timeout. The message shows the condition's source, its variables and its last failure.
    """
    failure: AssertionError | None = None
    pause = 0.001
    try:
        with anyio.move_on_after(seconds):
            while True:
                try:
                    outcome = condition()
                    if inspect.iscoroutine(outcome):
                        outcome = await outcome
                    if outcome:
                        return
                    failure = None
                except AssertionError as error:
                    failure = error
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
    except anyio.get_cancelled_exc_class():
        # The test's own timeout may expire first. pytest then shows the printed text.
        print(f"still waiting for:\n{_described(condition)}\n{failure or ''}")
        raise
    raise AssertionError(f"not true within {seconds:g} s:\n{_described(condition)}") from failure


async def let_expire(ask: Callable[[float], Awaitable[Any]], has_begun: Callable[[], bool]) -> TimeoutError:
    """Call `ask` with a timeout, let its request expire while the handler runs, and return the error.

    If the request expires before the handler runs, as it may on a slow machine, retry with four times the timeout.

    Raises:
        AssertionError: If the request succeeds.
    """
    seconds = 0.05
    while True:
        try:
            await ask(seconds)
        except TimeoutError as error:
            if has_begun():
                return error
        else:
            raise AssertionError(f"the request had not finished after {seconds:g} s")
        seconds *= 4


def _described(condition: Callable[[], Any]) -> str:
    """Return a condition's source and the variables that it closes over."""
    try:
        lines = [inspect.getsource(condition).strip()]
        seen = inspect.getclosurevars(condition).nonlocals
    except (OSError, TypeError, ValueError):  # there is no source, or it isn't a function
        return repr(condition)
    for name, value in seen.items():
        lines.append(f"    {name} = {_brief.repr(value)}")
        with suppress(Exception):  # not a bus, or a closed one
            lines.append(f"    {name}.stats() = {value.stats()!r}")
    return "\n".join(lines)
