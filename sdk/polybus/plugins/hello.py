"""Hello messages: a request and an answer that let two polybus peers recognize each other over any protocol."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

from attrs import evolve

if TYPE_CHECKING:
    from ..retry import Backoff

HELLO: Final = "_polybus.hello"
"""Subject of the request."""
_ASKS: Final = "asks"
"""Only requests have this member. Otherwise a program that echoes its requests would look like a polybus peer."""
_LONGEST_PAUSE: Final = 86_400_000
"""Maximum pause in milliseconds. Clients ignore longer ones."""


def question_of(asker: str = "", **facts: Any) -> dict[str, Any]:
    """Create the body of a request. `asker` identifies the sender, and `facts` are further members."""
    return {"v": 1, _ASKS: asker, **facts}


def answer_of(question: Any, asker: str) -> dict[str, Any] | None:
    """Create the answer to a request body. Returns None if `asker` sent that request itself and it was echoed."""
    own = isinstance(question, dict) and question.get(_ASKS) == asker
    return None if own else {"v": 1}


def is_answer(body: Any) -> TypeGuard[dict[str, Any]]:
    """Return True if a body is the answer of a polybus peer of any version."""
    return isinstance(body, dict) and body.get("v") == 1 and _ASKS not in body


def retry_of(backoff: Backoff) -> dict[str, int]:
    """Return a server's reconnect pauses in milliseconds, for its clients."""
    return {"initial": max(1, round(1000 * backoff.initial)), "maximum": max(1, round(1000 * backoff.maximum))}


def backoff_told(own: Backoff, retry: Any) -> Backoff:
    """Return the client's back-off with the pauses from the server's answer, if they are valid."""
    initial, maximum = (retry.get("initial"), retry.get("maximum")) if isinstance(retry, dict) else (None, None)
    if not (_is_pause(initial) and _is_pause(maximum)):
        return own
    return evolve(own, initial=initial / 1000, maximum=maximum / 1000)


def _is_pause(given: Any) -> TypeGuard[float]:
    return isinstance(given, (int, float)) and not isinstance(given, bool) and 1 <= given <= _LONGEST_PAUSE
