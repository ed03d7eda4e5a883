"""Retry policies for requests, and the pauses between retries and between reconnects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

from attrs import Attribute, field, frozen
from attrs.validators import optional

from ._validation import at_least, more_than_no_time, seconds, shown, yes_or_no
from .errors import BusError, Code, ConnectFailed, Disconnected, QueueFull, RequestError, TooLarge, as_code

__all__ = ["Backoff", "Retry"]


def _one_or_more(_: Any, attribute: Attribute[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{attribute.name}={shown(value)} must be a number, not {type(value).__name__}")
    if not value >= 1:
        raise ValueError(f"{attribute.name}={shown(value)} must be at least 1")


@frozen
class Backoff:
    """Exponential back-off with a maximum and full jitter.

    Args:
        initial: Maximum length of the first pause in seconds.
        maximum: Maximum length of any pause in seconds.
        attempts: Number of consecutive failures after which to give up, or `None` for no limit.
        factor: The maximum is multiplied by this factor after each failure.
        jitter: Choose a random pause up to the maximum, so that clients do not all reconnect at the same time. Otherwise,
            always wait for the maximum.

    Raises:
        TypeError: If an argument is not a number.
        ValueError: If a time is negative, zero or infinite, `attempts` is negative, or `factor` is below 1.
    """

    initial: float = field(default=0.25, validator=more_than_no_time)
    maximum: float = field(default=30.0, validator=more_than_no_time)
    attempts: int | None = field(default=None, validator=optional(at_least(0)))
    factor: float = field(default=2.0, validator=_one_or_more)
    jitter: bool = True

    def delay(self, attempt: int, rng: Callable[[], float] = random.random) -> float:
        """Return the number of seconds to wait before an attempt. The first attempt is 0."""
        bound = self.bound(attempt)
        return bound * rng() if self.jitter else bound

    def bound(self, attempt: int) -> float:
        """Return the longest possible `delay` before this attempt in seconds."""
        try:
            bound = self.initial * self.factor ** min(attempt, 64)
        except OverflowError:
            bound = self.maximum
        return float(min(self.maximum, bound))


def _pauses(given: Any) -> Backoff | tuple[float, ...]:
    if isinstance(given, Backoff):
        return given
    if isinstance(given, (int, float)):
        given = (given,)
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"backoff={shown(given)} must be a Backoff or a list of seconds, for example backoff=(1, 5, 30)")
    pauses = tuple(seconds(pause, "backoff") for pause in given)
    if not pauses:
        raise ValueError("backoff=() must have at least one pause, for example backoff=(1, 5, 30); 0 means no pause")
    return pauses


def _codes(given: Any) -> frozenset[Code]:
    if isinstance(given, (str, int)) or not isinstance(given, Iterable):
        raise TypeError(f"codes={shown(given)} must be a list of polybus.Code, for example codes=[Code.UNAVAILABLE]")
    return frozenset(as_code(code) for code in given)


@frozen
class Retry:
    """Policy for retrying a request: ``bus.request("door.open", 7, timeout=10, retry=Retry())``

    All attempts share one ``timeout``. By default, a request is retried only if no handler has started to process it: it was
    never sent or read (`Disconnected` with ``sent=False``, `ConnectFailed`, `QueueFull`), or it failed with `Unavailable` or
    `TooManyRequests`. If all attempts fail, the last error is raised with the number of attempts in `BusError.attempts`.

    Args:
        attempts: Maximum number of attempts, including the first.
        backoff: Pauses between attempts: a `Backoff`, or one or more numbers of seconds. The last number is repeated.
        idempotent: Also retry if the link was lost after the request was sent (`Disconnected` with ``sent=True``). Set this if
            processing the request twice is harmless.
        codes: Error codes that are retried.

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
