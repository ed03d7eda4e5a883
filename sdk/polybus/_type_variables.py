"""Type variables with a default, which Python has only since 3.13: type checkers see it, and nothing is imported for it."""

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
