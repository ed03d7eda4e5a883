"""Types of the decorators that register functions for a `Subject`: for type checkers alone, never imported by a program.

A function is taken whose body is what the subject takes, and whose result is what it returns. The body may be its first, second
or third parameter; what is before and behind it is injected, and is of no concern here. A function without a body has injected
parameters only. What type checkers cannot say, such as a body that is a keyword alone, is refused; ``handle("user.get")``, with
text for its subject, takes any function. There are no variants with ``Awaitable``, which some decorators return: mypy does not
choose among variants that fit where a parameter is a ``Context[Any]``, and would take all such functions for untyped ones.

The last variant is the first once more: it is the one that type checkers compare with in their messages.
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
    """An object that a handler is given by its class: see `injected_as`."""

    __context_part__: ClassVar[ContextPart]


C = TypeVar("C", bound="Context[Any] | Message[Any] | Injected | None")
D = TypeVar("D", bound="Context[Any] | Message[Any] | Injected | None")


class HandlerOf(Protocol[In, Out]):
    """Registers a handler of a ``Subject[In, Out]``; the function stays what it was."""

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
    """Registers a function that takes the publications of a ``Subject[In, ...]``; the function stays what it was."""

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
