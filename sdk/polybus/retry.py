"""Retries of requests after temporary failures."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from attrs import field, frozen

from ._validation import at_least, seconds, shown, yes_or_no
from .backoff import Backoff
from .errors import BusError, Code, ConnectFailed, Disconnected, QueueFull, RequestError, TooLarge, as_code

__all__ = ["Retry"]


def _pauses(given: Any) -> Backoff | tuple[float, ...]:
    if isinstance(given, Backoff):
        return given
    if isinstance(given, (int, float)):
        given = (given,)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"backoff={shown(given)}: a Backoff, or the seconds of the pauses, for example backoff=(1, 5, 30)")
    pauses = tuple(seconds(pause, "backoff") for pause in given)
    if not pauses:
        raise ValueError("backoff=(): at least one pause, for example backoff=(1, 5, 30); 0 means no pause")
    return pauses


def _codes(given: Any) -> frozenset[Code]:
    if isinstance(given, (str, int)) or not isinstance(given, Iterable):
        raise TypeError(f"codes={shown(given)}: a list of polybus.Code, for example codes=[Code.UNAVAILABLE]")
    return frozenset(as_code(code) for code in given)


@frozen
class Retry:
    """Policy for retrying a request: ``bus.request("door.open", 7, timeout=10, retry=Retry())``

    All attempts share one ``timeout``. By default a request is retried only if no handler has started on it, which means that
    it was never sent or read (`Disconnected` with ``sent=False``, `ConnectFailed`, `QueueFull`) or that the answer was
    `Unavailable` or `TooManyRequests`. The last error is raised, and its `BusError.attempts` is the number of attempts.

    Args:
        attempts: Maximum number of attempts, including the first.
        backoff: Pauses between attempts: a `Backoff`, or one or more numbers of seconds, the last of which repeats.
        idempotent: Also retry if the link was lost after the request was sent (`Disconnected` with ``sent=True``). Set this if
            it does no harm to process the request twice.
        codes: Error codes of answers to retry.

    Raises:
        TypeError: If an argument has the wrong type.
        ValueError: If `attempts` is below 1, a pause is missing or negative, or a code is unknown.
    """

    attempts: int = field(default=5, validator=at_least(1))
    backoff: Backoff | tuple[float, ...] = field(factory=lambda: Backoff(initial=0.1, maximum=5.0), converter=_pauses)
    idempotent: bool = field(default=False, validator=yes_or_no, kw_only=True)
    codes: frozenset[Code] = field(
        default=frozenset({Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED}), converter=_codes, kw_only=True
    )


def pause_after(retry: Retry, failed: int, rng: Callable[[], float] = random.random) -> float:
    """Return the number of seconds to wait after `failed` attempts (from 1)."""
    if isinstance(retry.backoff, Backoff):
        return retry.backoff.delay(failed - 1, rng)
    return retry.backoff[min(failed, len(retry.backoff)) - 1]


def covers(retry: Retry, error: BusError) -> bool:
    if isinstance(error, RequestError):
        return error.code in retry.codes and not isinstance(error, TooLarge)
    if isinstance(error, Disconnected):
        return retry.idempotent or not error.sent
    return isinstance(error, (ConnectFailed, QueueFull))
