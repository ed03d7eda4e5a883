"""Types of the decorators for a `Subject`. They are for type checkers only and never imported at run time.

Type checkers check the body and the result of a function. The body may be its first, second or third parameter. The other
parameters are injected and not checked here. Type checkers cannot express some valid functions, for example one with a
keyword-only body. For these, use ``handle("user.get")``, which accepts any function.

There are no variants with ``Awaitable``. If a parameter is a ``Context[Any]``, mypy does not choose among fitting variants and
would treat the function as untyped. The last variant repeats the first one, because type checkers name the last variant in
their messages.
"""

# mypy: disable-error-code="overload-overlap, overload-cannot-match"
# pyright: reportOverlappingOverload=false

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, ClassVar, Concatenate, ParamSpec, Protocol, TypeVar, overload

from ...message import Message
from ..rpc.channel import Channel
from ..runtime.context import Context
from .signature import ContextPart

P = ParamSpec("P")
In = TypeVar("In")
In_contra = TypeVar("In_contra", contravariant=True)
Out = TypeVar("Out")
R = TypeVar("R")
X = TypeVar("X")
Y = TypeVar("Y")


class Injected(Protocol):
    """A class that handlers can name as the type of a parameter to receive its instance. See `injected_as`."""

    __context_part__: ClassVar[ContextPart]


C = TypeVar("C", bound="Context[Any] | Message[Any] | Injected | None")
D = TypeVar("D", bound="Context[Any] | Message[Any] | Injected | None")


class HandlerOf(Protocol[In, Out]):
    """Registers a handler of a ``Subject[In, Out]`` and returns it unchanged."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[In, P], Coroutine[Any, Any, Out]], /
    ) -> Callable[Concatenate[In, P], Coroutine[Any, Any, Out]]: ...
    @overload
    def __call__(self, function: Callable[[], Coroutine[Any, Any, Out]], /) -> Callable[[], Coroutine[Any, Any, Out]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[X, In, P], Coroutine[Any, Any, Out]], /
    ) -> Callable[Concatenate[X, In, P], Coroutine[Any, Any, Out]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[X, Y, In, P], Coroutine[Any, Any, Out]], /
    ) -> Callable[Concatenate[X, Y, In, P], Coroutine[Any, Any, Out]]: ...
    @overload
    def __call__(self, function: Callable[[C], Coroutine[Any, Any, Out]], /) -> Callable[[C], Coroutine[Any, Any, Out]]: ...
    @overload
    def __call__(
        self, function: Callable[[C, D], Coroutine[Any, Any, Out]], /
    ) -> Callable[[C, D], Coroutine[Any, Any, Out]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[In, P], AsyncIterator[Out]], /
    ) -> Callable[Concatenate[In, P], AsyncIterator[Out]]: ...
    @overload
    def __call__(self, function: Callable[[], AsyncIterator[Out]], /) -> Callable[[], AsyncIterator[Out]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[X, In, P], AsyncIterator[Out]], /
    ) -> Callable[Concatenate[X, In, P], AsyncIterator[Out]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[X, Y, In, P], AsyncIterator[Out]], /
    ) -> Callable[Concatenate[X, Y, In, P], AsyncIterator[Out]]: ...
    @overload
    def __call__(self, function: Callable[[C], AsyncIterator[Out]], /) -> Callable[[C], AsyncIterator[Out]]: ...
    @overload
    def __call__(self, function: Callable[[C, D], AsyncIterator[Out]], /) -> Callable[[C, D], AsyncIterator[Out]]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[In, P], Out], /) -> Callable[Concatenate[In, P], Out]: ...
    @overload
    def __call__(self, function: Callable[[], Out], /) -> Callable[[], Out]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[X, In, P], Out], /) -> Callable[Concatenate[X, In, P], Out]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[X, Y, In, P], Out], /) -> Callable[Concatenate[X, Y, In, P], Out]: ...
    @overload
    def __call__(self, function: Callable[[C], Out], /) -> Callable[[C], Out]: ...
    @overload
    def __call__(self, function: Callable[[C, D], Out], /) -> Callable[[C, D], Out]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Channel[In, Out], P], Coroutine[Any, Any, None]], /
    ) -> Callable[Concatenate[Channel[In, Out], P], Coroutine[Any, Any, None]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[X, Channel[In, Out], P], Coroutine[Any, Any, None]], /
    ) -> Callable[Concatenate[X, Channel[In, Out], P], Coroutine[Any, Any, None]]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[In, P], Coroutine[Any, Any, Out]], /
    ) -> Callable[Concatenate[In, P], Coroutine[Any, Any, Out]]: ...


class SubscriberOf(Protocol[In]):
    """Registers a function for the publications of a ``Subject[In, ...]`` and returns it unchanged."""

    @overload
    def __call__(self, function: Callable[Concatenate[In, P], R], /) -> Callable[Concatenate[In, P], R]: ...
    @overload
    def __call__(self, function: Callable[[], R], /) -> Callable[[], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[X, In, P], R], /) -> Callable[Concatenate[X, In, P], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[X, Y, In, P], R], /) -> Callable[Concatenate[X, Y, In, P], R]: ...
    @overload
    def __call__(self, function: Callable[[C], R], /) -> Callable[[C], R]: ...
    @overload
    def __call__(self, function: Callable[[C, D], R], /) -> Callable[[C, D], R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[In, P], R], /) -> Callable[Concatenate[In, P], R]: ...
