"""Creates clients of a contract, which are objects with methods that send requests through a bus, a peer or a user.

A stream is an async iterator that manages its own lifetime, so it doesn't need an ``async with`` block.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

from .._core.rpc.channel import leave
from .._util.event_loop import Loop, running_loop
from .contract import ContractMethod, ContractPlan

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .._core.rpc.channel import Channel, ChannelContext


P = TypeVar("P")
T = TypeVar("T")
_Maker: TypeAlias = "Callable[[Any, str | int, ContractMethod], Callable[..., Any]]"


class ItemStream(AsyncGenerator[T, None]):
    """The result of a contract's stream: ``async for user in users.watch(query): ...``

    The stream opens on the first iteration. It ends after its last item, on an error, when you call `aclose` (``async with
    aclosing(users.watch(query)) as found``), or when it is garbage-collected after you leave it early. In the last two cases
    the handler on the other side is stopped.
    """

    def __init__(self, opening: ChannelContext[T, Any]) -> None:
        self._opening: ChannelContext[T, Any] | None = opening
        self._channel: Channel[T, Any] | None = None
        self._loop: Loop | None = None
        self._over = False

    async def asend(self, value: None) -> T:
        """Wait for the next item and return it. `value` must be None."""
        if value is not None:
            raise TypeError(f"asend({value!r:.40}): a stream does not accept items; use bus.channel()")
        if self._over:
            raise StopAsyncIteration
        channel = self._channel
        if channel is None:
            channel = await self._opened()
        try:
            return await anext(channel)
        except Exception:  # including StopAsyncIteration; like a generator, the stream ends with an error
            self._leave()
            raise

    async def _opened(self) -> Channel[T, Any]:
        opening, self._opening = self._opening, None
        if opening is None:
            raise RuntimeError("another task is opening this stream: read the first item in one task")
        try:
            channel = self._channel = await opening.__aenter__()
        except BaseException:
            self._over = True
            raise
        self._loop = running_loop()
        if self._over:  # closed in between
            leave(channel)
        return channel

    async def athrow(
        self,
        kind: type[BaseException] | BaseException,
        error: BaseException | object = None,
        trace: TracebackType | None = None,
    ) -> T:
        """Leave the stream and raise the given error."""
        self._leave()
        raise error if isinstance(error, BaseException) else kind

    def _leave(self) -> None:
        self._over, self._opening = True, None
        if self._channel is not None:
            leave(self._channel)

    def __del__(self) -> None:
        channel, loop = self._channel, self._loop
        if channel is None or loop is None or self._over:
            return
        try:
            # Later, because garbage collection may run in another thread, or in the middle of the link's work.
            loop.call_from_thread(partial(leave, channel))
        except RuntimeError:  # the loop is closed, and so is the channel
            pass


TIMEOUT: Final = 30.0
_MISSING: Final = object()


class ContractClient:
    """Base class of clients, which have the methods of a contract."""

    def __init__(self, contract: ContractPlan, prefix: str, asker: Any) -> None:
        self.__contract = contract
        self.__shown = f"<client of {contract.name} at {prefix or 'no prefix'!r} by {asker!r}>"

    def __repr__(self) -> str:
        return self.__shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # not a method; copying looks up such names before it sets the contract
            raise AttributeError(f"{type(self).__name__} has no {name}", name=name, obj=self)
        methods = ", ".join(method.attribute for method in self.__contract.methods)
        raise AttributeError(f"{self.__contract.name} has no method {name!r}; it has {methods}", name=name, obj=self)


def client_of(asker: Any, contract: TypeForm[P], prefix: str) -> P:
    """Create a client that calls through a bus, a peer or a user. Raises `TypeError` unless it is a contract of coroutines."""
    read = ContractPlan.of(contract)
    if read.blocking:
        first = read.methods[0]
        raise TypeError(
            f"{first.name} is a plain `def`, which would block the event loop: write `async def {first.attribute}(self, ...)`, "
            "or use polybus.sync in a thread"
        )
    return cast("P", _made(read, prefix, asker, _ask, _iterate))


def blocking_client_of(asker: Any, contract: TypeForm[P], prefix: str) -> P:
    """Create a client that calls through a blocking bus or peer. Raises `TypeError` unless it is a contract for threads."""
    read = ContractPlan.of(contract)
    if not read.blocking:
        first = read.methods[0]
        raise TypeError(
            f"{first.name} is async: write a contract with plain methods for threads, "
            f"`def {first.attribute}(self, ...) -> T`, for a stream `-> Iterator[T]`; the subjects are the same"
        )
    return cast("P", _made(read, prefix, asker, _ask_blocking, _iterate_blocking))


def _made(contract: ContractPlan, prefix: str, asker: Any, ask: _Maker, iterate: _Maker) -> ContractClient:
    client = ContractClient(contract, prefix, asker)
    for subject, method in contract.subjects(prefix).items():
        function: Any = (iterate if method.style == "stream" else ask)(asker, subject, method)
        function.__name__, function.__qualname__, function.__doc__ = method.attribute, method.name, method.text
        function.__signature__ = method.signature
        function.__annotations__ = dict(method.hints)  # with these it implements the contract for another bus
        setattr(client, method.attribute, function)
    return client


def _body(method: ContractMethod, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Return the body of a call that doesn't pass exactly one positional argument."""
    try:
        bound = method.signature.bind(*given, **named)
    except TypeError as error:
        raise TypeError(f"{method.name}: {error}") from None
    return next(iter(bound.arguments.values()), None)  # the implementation has the default


# A plain call with the body as its only argument costs one call more than the bus's own method, and one more after the
# answer.


def _ask(asker: Any, subject: str | int, method: ContractMethod) -> Callable[..., Any]:
    send, checked = _sender(asker, subject, method), not method.positional

    async def ask(body: Any = _MISSING, /, *more: Any, **named: Any) -> Any:
        if body is _MISSING or more or named or checked:
            body = _body(method, () if body is _MISSING else (body, *more), named)
        return await send(body)

    return ask


def _sender(asker: Any, subject: str | int, method: ContractMethod) -> Callable[[Any], Any]:
    if method.style == "notification":
        return partial(asker.notify, subject)
    timeout = TIMEOUT if method.timeout is None else method.timeout
    return partial(asker.request, subject, timeout=timeout, returns=method.returns)


def _iterate(asker: Any, subject: str | int, method: ContractMethod) -> Callable[..., Any]:
    stream = partial(asker.stream, timeout=method.timeout, returns=method.returns)

    def iterate(*given: Any, **named: Any) -> ItemStream[Any]:
        return ItemStream(stream(subject, _body(method, given, named)))

    return iterate


def _ask_blocking(asker: Any, subject: str | int, method: ContractMethod) -> Callable[..., Any]:
    send = _sender(asker, subject, method)

    def ask(*given: Any, **named: Any) -> Any:
        return send(_body(method, given, named))

    return ask


def _iterate_blocking(asker: Any, subject: str | int, method: ContractMethod) -> Callable[..., Any]:
    def iterate(*given: Any, **named: Any) -> Iterator[Any]:
        return items(_body(method, given, named))

    def items(body: Any) -> Iterator[Any]:
        with asker.stream(subject, body, timeout=method.timeout, returns=method.returns) as found:
            yield from found

    return iterate
