"""Arguments that are made of a message, and the error where one does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._util.typed_body import convert_text, misfit
from ..errors import BadRequest

if TYPE_CHECKING:
    from .._core.context import Context
    from ..message import Message


class Misfit(BadRequest):
    """An argument that does not fit: told apart from a `BadRequest` that the function raises."""

    @classmethod
    def of(cls, error: BadRequest) -> Misfit:
        """The same error, as one of an argument."""
        return cls(error.text, reason=error.reason, detail=error.detail)


def capture_maker(position: int, hint: Any, name: str) -> Callable[..., Any]:
    """Make the maker of an argument out of a token of the subject."""

    def make(context: Callable[[], Context], message: Message, channel: Any) -> Any:
        text = str(message.subject).split(".")[position]
        if hint is Any or hint is str:
            return text
        try:
            return convert_text(text, hint)
        except Exception as error:
            raise Misfit(f"{name} in the subject: {misfit(error)[0]}") from error

    return make
