"""Arguments that are made of a message, and the error where one does not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._util.class_shapes import open_variable
from ..._util.pydantic_types import is_own
from ..._util.typed_body import convert_text, misfit, unreadable
from ..runtime.outcomes import Misfit

if TYPE_CHECKING:
    from ...message import Message
    from ..runtime.context import Context


def check_default(parameter: inspect.Parameter, function: str) -> None:
    """Check that a default is a value, and none of what pydantic and FastAPI write in its place.

    Raises:
        TypeError: It is such a one: nobody would check what it says, and without a body the handler would be given it.
    """
    default = parameter.default
    if hasattr(default, "default_factory") and is_own(default):
        word = type(default).__name__.removesuffix("Info")
        raise TypeError(
            f"{function}: {parameter.name!r} has {word}(...) as its default: write it into the type, as in "
            f"Annotated[int, {word}(gt=0)], and the default itself behind that"
        )


def closed_type(hint: Any, what: str, promised: Any = Any) -> Any:
    """A type without open type variables: where it has any, what was promised in its place.

    Raises:
        TypeError: Nothing was: everything would fit, and nothing be converted.
    """
    if (variable := open_variable(hint)) is None:
        return hint
    if promised is Any:
        raise TypeError(
            f"{what} leaves open what {variable} stands for: register the method of an object whose class says it, as in "
            "`class Users(Rows[User])`, name the type, or write Any; a decorator keeps the types by functools.wraps"
        )
    return promised


def capture_maker(position: int, hint: Any, name: str, function: str) -> Callable[..., Any]:
    """Make the maker of an argument out of a token of the subject.

    Raises:
        TypeError: No text can be read as its type.
    """
    hint = closed_type(hint, f"{function}: the type of {name!r}")
    if (problem := unreadable(hint)) is not None:
        raise TypeError(f"{function}: no token of a subject can be read as the type of {name!r}: {problem}")

    def make(context: Callable[[], Context], message: Message, channel: Any) -> Any:
        text = str(message.subject).split(".")[position]
        if hint is Any or hint is str:
            return text
        try:
            return convert_text(text, hint)
        except NameError:  # the type names what is not known: no mistake of the sender
            raise
        except Exception as error:
            raise Misfit(f"{name} in the subject: {misfit(error)[0]}") from error

    return make
