"""Type variables with defaults (Python 3.13) for type checkers. Nothing is imported for them at run time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    T_co = TypeVar("T_co", default=Any, covariant=True)
    State_co = TypeVar("State_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    T_co = TypeVar("T_co", covariant=True)
    State_co = TypeVar("State_co", covariant=True)
