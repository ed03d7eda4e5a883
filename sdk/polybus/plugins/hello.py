"""Hello messages, which identify two polybus peers to each other over any protocol: a question, and an answer that is not its
echo."""

from __future__ import annotations

from typing import Any, Final, TypeGuard

HELLO: Final = "_polybus.hello"
"""Subject of the question."""
_ASKS: Final = "asks"
"""Member of questions that answers lack: a program that echoes every request is not a polybus peer."""


def question_of(asker: str = "", **facts: Any) -> dict[str, Any]:
    """Question with further facts; the asker's name tells it from those of others."""
    return {"v": 1, _ASKS: asker, **facts}


def answer_of(question: Any, asker: str) -> dict[str, Any] | None:
    """Answer to the body of a question; None for our own question, which came back."""
    own = isinstance(question, dict) and question.get(_ASKS) == asker
    return None if own else {"v": 1}


def is_answer(body: Any) -> TypeGuard[dict[str, Any]]:
    """True for the answer of a polybus peer; earlier versions, without ``asks``, send one too."""
    return isinstance(body, dict) and body.get("v") == 1 and _ASKS not in body
