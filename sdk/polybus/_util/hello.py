"""The words by which two buses of ours know each other over any protocol: a question, and an answer that is no echo of it."""

from __future__ import annotations

from typing import Any, Final, TypeGuard

__all__ = ["HELLO", "answer_of", "is_answer", "question_of"]

HELLO: Final = "_polybus.hello"
"""The subject of the question."""
_ASKS: Final = "asks"
"""A member of questions that no answer has. Programs that answer everything with what they were asked are no buses of ours."""


def question_of(asker: str = "", **facts: Any) -> dict[str, Any]:
    """A question.

    Args:
        asker: What tells this one from the questions of others.
        facts: What else is said or asked.
    """
    return {"v": 1, _ASKS: asker, **facts}


def answer_of(question: Any, asker: str) -> dict[str, Any] | None:
    """The answer to a question, to be filled; None to a question of our own that comes back.

    Args:
        question: Its body.
        asker: By what our own questions to that peer are told.
    """
    own = isinstance(question, dict) and question.get(_ASKS) == asker
    return None if own else {"v": 1}


def is_answer(body: Any) -> TypeGuard[dict[str, Any]]:
    """Whether this is what a bus of ours answers. Buses of before, who know no ``asks``, answer likewise."""
    return isinstance(body, dict) and body.get("v") == 1 and _ASKS not in body
