"""Hellos, by which two polybus peers know each other over any protocol: a question, and an answer that is no echo of it."""

from __future__ import annotations

from typing import Any, Final, TypeGuard

HELLO: Final = "_polybus.hello"
"""The subject of the question."""
_ASKS: Final = "asks"
"""A member of questions that no answer has: a program that echoes all it is asked is no polybus peer."""


def question_of(asker: str = "", **facts: Any) -> dict[str, Any]:
    """Make a question with further facts; the name of the asker tells it from those of others."""
    return {"v": 1, _ASKS: asker, **facts}


def answer_of(question: Any, asker: str) -> dict[str, Any] | None:
    """Make the answer to the body of a question; None to a question of our own, by the asker's name, that comes back."""
    own = isinstance(question, dict) and question.get(_ASKS) == asker
    return None if own else {"v": 1}


def is_answer(body: Any) -> TypeGuard[dict[str, Any]]:
    """Check for the answer of a polybus peer. Earlier versions, which know no ``asks``, answer likewise."""
    return isinstance(body, dict) and body.get("v") == 1 and _ASKS not in body
