"""Hello messages identify two polybus peers to each other over any protocol.

A hello consists of a question and an answer, which must not be an echo of the question.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeGuard

from attrs import evolve

if TYPE_CHECKING:
    from ..backoff import Backoff

HELLO: Final = "_polybus.hello"
"""The subject of the question."""
_ASKS: Final = "asks"
"""A member that questions have and answers do not have, because a program that echoes every request is not a polybus peer."""
_LONGEST_PAUSE: Final = 86_400_000
"""The longest pause in milliseconds. A client ignores longer ones."""


def question_of(asker: str = "", **facts: Any) -> dict[str, Any]:
    """Create a question with further members. The name of the asker distinguishes it from the questions of others."""
    return {"v": 1, _ASKS: asker, **facts}


def answer_of(question: Any, asker: str) -> dict[str, Any] | None:
    """Create the answer to the body of a question; None if the question is our own and was sent back."""
    own = isinstance(question, dict) and question.get(_ASKS) == asker
    return None if own else {"v": 1}


def is_answer(body: Any) -> TypeGuard[dict[str, Any]]:
    """True for the answer of a polybus peer, including earlier versions, whose questions have no ``asks``."""
    return isinstance(body, dict) and body.get("v") == 1 and _ASKS not in body


def retry_of(backoff: Backoff) -> dict[str, int]:
    """Convert the pauses of a server to milliseconds, for its clients."""
    return {"initial": max(1, round(1000 * backoff.initial)), "maximum": max(1, round(1000 * backoff.maximum))}


def backoff_told(own: Backoff, retry: Any) -> Backoff:
    """Return a back-off with the pauses that a server sent, or with the client's own if it sent none or invalid ones."""
    initial, maximum = (retry.get("initial"), retry.get("maximum")) if isinstance(retry, dict) else (None, None)
    if not (_is_pause(initial) and _is_pause(maximum)):
        return own
    return evolve(own, initial=initial / 1000, maximum=maximum / 1000)


def _is_pause(given: Any) -> TypeGuard[float]:
    return isinstance(given, (int, float)) and 1 <= given <= _LONGEST_PAUSE
