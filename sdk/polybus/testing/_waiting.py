"""Waiting for what no event tells of, so that a wait in vain can be explained from what it says."""

from __future__ import annotations

import inspect
import reprlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import anyio

PATIENCE = 30.0
"""Seconds within which what is waited for must come about, also on a slow machine with other work."""

_LONGEST_PAUSE = 0.02

_brief = reprlib.Repr()
_brief.maxstring = _brief.maxother = 600
_brief.maxdict = _brief.maxlist = _brief.maxset = 40


async def eventually(condition: Callable[[], Any], seconds: float = PATIENCE) -> None:
    """Wait until a condition, a function or a coroutine function, holds; it may also fail an assertion until then.

    Raises:
        AssertionError: It does not hold by then. The text has the condition's source, the variables it looks at, its failure.
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
        # A bound of the whole test may come first; what is printed is shown with its failure.
        print(f"still waited for:\n{_described(condition)}\n{failure or ''}")
        raise
    raise AssertionError(f"not so within {seconds:g} s:\n{_described(condition)}") from failure


async def let_expire(ask: Callable[[float], Awaitable[Any]], has_begun: Callable[[], bool]) -> TimeoutError:
    """Let the time of a request, which `ask` gets, end while its handler runs, and give the error. With little time it may end
    before, on a slow machine: then it gets more. AssertionError: the request has not ended by its time.
    """
    seconds = 0.05
    while True:
        try:
            await ask(seconds)
        except TimeoutError as error:
            if has_begun():
                return error
        else:
            raise AssertionError(f"nothing has ended it after {seconds:g} s")
        seconds *= 4


def _described(condition: Callable[[], Any]) -> str:
    """The source of a condition, and what the variables from around it are."""
    try:
        lines = [inspect.getsource(condition).strip()]
        seen = inspect.getclosurevars(condition).nonlocals
    except (OSError, TypeError, ValueError):  # no source, or no function
        return repr(condition)
    for name, value in seen.items():
        lines.append(f"    {name} = {_brief.repr(value)}")
        with suppress(Exception):  # it is no bus, or a closed one
            lines.append(f"    {name}.stats() = {value.stats()!r}")
    return "\n".join(lines)
