"""Clients of a contract: objects with its methods, each of which asks by a verb of a bus, a peer or a user."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from .contract import Contract, Method
from .items import ItemStream

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .ports import Asker, BlockingAsker

P = TypeVar("P")

TIMEOUT: Final = 30.0
_MISSING: Final = object()


class Client:
    """An object with the methods of a contract."""

    def __init__(self, contract: Contract, prefix: str, asker: object) -> None:
        self.__contract = contract
        self.__shown = f"<client of {contract.name} at {prefix or 'no prefix'!r} by {asker!r}>"

    def __repr__(self) -> str:
        return self.__shown

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # no method does; and a copy is asked for some before it has its contract
            raise AttributeError(f"{type(self).__name__} has no {name}", name=name, obj=self)
        methods = ", ".join(method.attribute for method in self.__contract.methods)
        raise AttributeError(f"{self.__contract.name} has no method {name!r}; it has {methods}", name=name, obj=self)


def client_of(asker: Asker, contract: TypeForm[P], prefix: str) -> P:
    """Make the client that asks by the verbs of a bus, a peer or a user.

    Raises:
        TypeError: It is no contract, or one for threads.
    """
    read = Contract.of(contract)
    if read.blocking:
        first = read.methods[0]
        raise TypeError(
            f"{first.name} is a plain `def`, which would block the event loop: write `async def {first.attribute}(self, ...)`, "
            "or ask in a thread by polybus.sync"
        )
    ways: dict[str, Callable[..., Any]] = {"request": _ask, "stream": _iterate, "notification": _tell}
    return cast("P", _made(read, prefix, asker, ways))


def blocking_client_of(asker: BlockingAsker, contract: TypeForm[P], prefix: str) -> P:
    """Make the client that asks by the verbs of the blocking twin.

    Raises:
        TypeError: It is no contract, or one whose methods are async.
    """
    read = Contract.of(contract)
    if not read.blocking:
        first = read.methods[0]
        raise TypeError(
            f"{first.name} is async, and a thread waits for its answer: write a contract of plain methods for threads, "
            f"`def {first.attribute}(self, ...) -> T`, for a stream `-> Iterator[T]`; the subjects are the same"
        )
    ways: dict[str, Callable[..., Any]] = {
        "request": _ask_blocking,
        "stream": _iterate_blocking,
        "notification": _tell_blocking,
    }
    return cast("P", _made(read, prefix, asker, ways))


def _made(contract: Contract, prefix: str, asker: object, ways: dict[str, Callable[..., Any]]) -> Client:
    client = Client(contract, prefix, asker)
    for subject, method in contract.subjects(prefix).items():
        function = ways[method.style](asker, subject, method)
        function.__name__, function.__qualname__, function.__doc__ = method.attribute, method.name, method.text
        function.__signature__ = method.signature
        function.__annotations__ = dict(method.hints)  # by which it implements the contract for another bus
        setattr(client, method.attribute, function)
    return client


def _body(method: Method, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """The body of a call that is not just the body: of one by name, or without it."""
    try:
        bound = method.signature.bind(*given, **named)
    except TypeError as error:
        raise TypeError(f"{method.name}: {error}") from None
    return next(iter(bound.arguments.values()), None)  # a default is that of the implementation


# A plain call of the body alone costs one call more than the verb, and one when it goes on after the answer.


def _ask(asker: Asker, subject: str | int, method: Method) -> Callable[..., Any]:
    request, returns = asker.request, method.returns
    timeout = TIMEOUT if method.timeout is None else method.timeout
    checked = not method.positional

    async def ask(body: Any = _MISSING, /, *more: Any, **named: Any) -> Any:
        if body is _MISSING or more or named or checked:
            body = _body(method, (*_given(body), *more), named)
        return await request(subject, body, timeout=timeout, returns=returns)

    return ask


def _tell(asker: Asker, subject: str | int, method: Method) -> Callable[..., Any]:
    notify, checked = asker.notify, not method.positional

    async def tell(body: Any = _MISSING, /, *more: Any, **named: Any) -> None:
        if body is _MISSING or more or named or checked:
            body = _body(method, (*_given(body), *more), named)
        await notify(subject, body)

    return tell


def _iterate(asker: Asker, subject: str | int, method: Method) -> Callable[..., Any]:
    stream = partial(asker.stream, timeout=method.timeout, returns=method.returns)

    def iterate(*given: Any, **named: Any) -> ItemStream[Any]:
        return ItemStream(stream(subject, _body(method, given, named)))

    return iterate


def _ask_blocking(asker: BlockingAsker, subject: str | int, method: Method) -> Callable[..., Any]:
    timeout = TIMEOUT if method.timeout is None else method.timeout

    def ask(*given: Any, **named: Any) -> Any:
        return asker.request(subject, _body(method, given, named), timeout=timeout, returns=method.returns)

    return ask


def _tell_blocking(asker: BlockingAsker, subject: str | int, method: Method) -> Callable[..., Any]:
    def tell(*given: Any, **named: Any) -> None:
        asker.notify(subject, _body(method, given, named))

    return tell


def _iterate_blocking(asker: BlockingAsker, subject: str | int, method: Method) -> Callable[..., Any]:
    def iterate(*given: Any, **named: Any) -> Iterator[Any]:
        return items(_body(method, given, named))

    def items(body: Any) -> Iterator[Any]:
        with asker.stream(subject, body, timeout=method.timeout, returns=method.returns) as found:
            yield from found

    return iterate


def _given(body: Any) -> tuple[Any, ...]:
    return () if body is _MISSING else (body,)
