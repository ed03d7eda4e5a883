"""Creates blocking classes from asynchronous ones. The return type of a method decides how its twin blocks."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

from attrs import frozen

from .. import Survey
from ..contracts.client import blocking_client_of
from .items import BlockingBlock, BlockingChannel, BlockingItems, BlockingSubscription, BlockingTunnel, Run, awaited, called

if TYPE_CHECKING:
    from typing_extensions import TypeForm

P = TypeVar("P")


def blocking(given: Any, run: Run) -> Any:
    """Return the blocking twin of a peer or another object with asynchronous methods. Other objects are returned unchanged."""
    if isinstance(given, list):
        return [blocking(one, run) for one in given]
    if isinstance(given, Survey):
        return Survey(tuple(blocking(one, run) for one in given), given.complete)
    twin = twins().get(type(given))
    return given if twin is None else twin(given, run)


def asynchronous(to: Any) -> Any:
    """Return the originals of twins, which asynchronous methods expect. Other addresses are returned unchanged."""
    if isinstance(to, Twin):
        return to._original
    return [asynchronous(peer) for peer in to] if isinstance(to, Iterable) and not isinstance(to, str) else to


@frozen
class Way:
    """A rule for the blocking twin of a method.

    Attributes:
        annotation: Return type of the twin's method. ``{0}`` is replaced by the type argument of the original.
        block: Calls the method and returns the twin's result.
    """

    annotation: str
    block: Callable[[Run, Callable[[], Any]], Any]


WAYS: Final = {
    "AbstractAsyncContextManager": Way(
        "BlockingBlock[{0}]", lambda run, verb: BlockingBlock(run, verb(), partial(blocking, run=run))
    ),
    "AsyncIterator": Way("BlockingItems[{0}]", lambda run, verb: BlockingItems(run(called, verb), run)),
    "Caller": Way("BlockingCaller", lambda run, verb: blocking(verb(), run)),
    "ChannelContext": Way("BlockingChannel[{0}]", lambda run, verb: BlockingChannel(verb(), run)),
    "Connector": Way("BlockingTunnel", lambda run, verb: BlockingTunnel(verb(), run)),
    "Reply": Way("{0}", lambda run, verb: run(awaited, verb)),
    "Subscription": Way("BlockingSubscription[{0}]", lambda run, verb: BlockingSubscription(verb(), run)),
    "User": Way("BlockingUser", lambda run, verb: blocking(verb(), run)),
}
"""Rules by return type. Methods with other return types are called or awaited on the event loop."""
_CALL: Final = Way("{whole}", lambda run, verb: blocking(run(called, verb), run))
_AWAIT: Final = Way("{whole}", lambda run, verb: blocking(run(verb), run))


def way_of(returns: str, *, is_async: bool = False) -> tuple[Way, str]:
    """Return the rule for a method with this return annotation, and the return annotation of the twin's method."""
    kind, _, about = returns.removesuffix("]").partition("[")
    way = WAYS.get(kind, _AWAIT if is_async else _CALL)
    shown = re.sub(r"\b(Peer|RemotePeer|Listener)\b", r"Blocking\1", way.annotation.format(about, whole=returns))
    return way, shown


_SUMMARIES: Final = {
    "request": "Send a request and return its answer. Ctrl-C cancels it, on the other side too if the protocol supports that."
}
_WORDS: Final = (
    (r"When awaited, i", "I"),
    (r"\ban async (context manager)", r"a \1"),
    (r"\basync (with|for|context manager)\b", r"\1"),
    (r"\bawait ", ""),
    (r"``connect\(", "``sync.connect("),
    (r"`(Bus\.(?!handle)|Peer`|Peer\.|RemotePeer`|Listener`)", r"`Blocking\1"),
    (r"(he bus) runs in another event loop", r"\1 does not run, or this thread runs its event loop"),
    (r"or runs in another event loop", "or this thread runs its event loop"),
)


def said(name: str, text: str | None) -> str | None:
    if text is None:  # python -OO
        return None
    text = inspect.cleandoc(text)
    if name in _SUMMARIES:
        text = "\n".join((_SUMMARIES[name], *text.splitlines()[1:]))
    for old, new in _WORDS:
        text = re.sub(old, new, text)
    return text


def _attribute(kind: type, name: str) -> property:
    """Create a property for an attribute or property of the original. A list is read on the event loop."""
    original = inspect.getattr_static(kind, name, None)
    if not isinstance(original, property):
        words = re.search(rf"^ *{name}: (.+)$", kind.__doc__ or "", re.M)
        return property(lambda self: getattr(self._original, name), doc=words and words[1])
    assert original.fget is not None
    if not original.fget.__annotations__["return"].startswith("list"):
        return property(lambda self: getattr(self._original, name), doc=said(name, original.__doc__))
    return property(
        lambda self: _CALL.block(self._run, lambda: getattr(self._original, name)), doc=said(name, original.__doc__)
    )


def _verb(twin: type[Twin], name: str, verb: Callable[..., Any]) -> Any:
    way, gives = way_of(verb.__annotations__["return"], is_async=inspect.iscoroutinefunction(verb))
    original, block = verb.__name__, way.block

    def call(self: Twin, /, *args: Any, **kwargs: Any) -> Any:
        if "to" in kwargs:
            kwargs["to"] = asynchronous(kwargs["to"])
        return block(self._run, partial(getattr(self._original, original), *args, **kwargs))

    call.__name__, call.__qualname__, call.__module__ = name, f"{twin.__name__}.{name}", twin.__module__
    call.__doc__ = said(original, verb.__doc__)
    of_help: Any = call
    of_help.__signature__ = inspect.signature(verb).replace(return_annotation=gives)
    return call


class Twin:
    """An asynchronous object with methods that block the calling thread.

    ``class BlockingListener(Twin, of=Listener, verbs="url peers")`` creates its members from the original's.
    ``close=aclose`` renames a member.
    """

    _twins: ClassVar[dict[type, type[Twin]]] = {}
    _names: ClassVar[dict[str, str]]

    def __init__(self, original: Any, run: Run) -> None:
        self._original = original
        self._runs = run

    @property
    def _run(self) -> Run:
        return self._runs

    def __init_subclass__(cls, *, of: type | None = None, verbs: str = "") -> None:
        if of is None:
            return
        cls._twins[of] = cls
        cls._names = {verb.partition("=")[0]: verb.rpartition("=")[2] for verb in verbs.split()}
        for name, original in cls._names.items():
            member = inspect.getattr_static(of, original, None)
            setattr(cls, name, _verb(cls, name, member) if inspect.isfunction(member) else _attribute(of, original))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._original is other._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __repr__(self) -> str:
        return repr(self._original)


def names_of(twin: type[Twin]) -> dict[str, str]:
    return twin._names


def twins() -> dict[type, type[Twin]]:
    return Twin._twins


class AskingTwin(Twin):
    def client(self, contract: TypeForm[P], prefix: str = "") -> P:
        """Create a client for a Protocol class. Each method sends a request and waits for the answer.

        After ``users = bus.client(Users, "user")``, ``users.get(GetUser(7))`` sends a request to ``user.get``.

        Args:
            contract: A `typing.Protocol` with ``def`` methods that accept one body. A stream returns ``Iterator[T]``. For a
                contract with ``async def`` methods, use `Bus.client`, because type checkers expect its answers to be awaited.
            prefix: First part of the subjects. A dot and the name of the method follow it.

        Raises:
            TypeError: If `contract` is not a contract or leads to invalid subjects. The text names the class and the method,
                and says what to write.
        """
        return blocking_client_of(self, contract, prefix)
