"""A bus as integrations see it: metrics, traces, documents, web frameworks, recorders and tools for tests.

Each function asks a `Bus` what none of its verbs tells.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from attrs import frozen

from ._core.bus.bus import Bus, Recording, parts_of
from ._core.handlers.providers import provider_finder
from .subjects import RESERVED_PREFIX

if TYPE_CHECKING:
    from ._core.handlers.handler import Handler
    from ._core.handlers.lookup import Publication
    from ._core.handlers.signature import Style as HandlerStyle
    from ._core.handlers.subscriber import SubscriberSpec
    from ._core.runtime.executor import Middleware
    from .plugins import Host
    from .plugins.extensions import Mesh
    from .plugins.parts import BusLink
    from .plugins.recording import Recorder
    from .stats import DurableStats

__all__ = [
    "Operation",
    "OperationStyle",
    "Recording",
    "call_in_loop",
    "durables_of",
    "failure_of",
    "is_guarded",
    "host_of",
    "id_of",
    "is_entered",
    "links_of",
    "mesh_of",
    "middleware_of",
    "operations_of",
    "overriding",
    "record_with",
    "unchecked_of",
    "until",
]

T = TypeVar("T")

# -- its state ---------------------------------------------------------------------------------------------------------------


def is_entered(bus: Bus) -> bool:
    """Tell whether a bus is entered."""
    return parts_of(bus).services.runtime is not None


def failure_of(bus: Bus) -> str:
    """Say why a bus has closed by itself; empty where it has not."""
    return parts_of(bus).services.failed


def host_of(bus: Bus) -> Host:
    """Give the services of a bus: its clock and tasks, and what transports get.

    Raises:
        LocalProtocolError: It is not entered, or runs in another event loop.
    """
    runtime = parts_of(bus).services.running
    runtime.check_here()
    return runtime


def call_in_loop(bus: Bus, function: Callable[[], T], timeout: float) -> T:
    """Call a function in the event loop of a bus, from any thread; here where the bus is not entered.

    Raises:
        TimeoutError: The event loop has not called it in so many seconds.
        Exception: As the function.
    """
    runtime = parts_of(bus).services.runtime
    if runtime is None or runtime.loop.is_here():
        return function()
    answer: Future[T] = Future()

    def call() -> None:
        try:
            answer.set_result(function())
        except Exception as error:
            answer.set_exception(error)

    try:
        runtime.loop.call_from_thread(call)
    except RuntimeError:  # it is over
        return function()
    return answer.result(timeout)


async def until(bus: Bus, condition: Callable[[], bool]) -> None:
    """Wait for a condition that comes true with something a bus takes note of: a link, a node, the end of a request.

    Raises:
        LocalProtocolError: The bus is not entered.
    """
    await parts_of(bus).services.running.notifier.until(condition)


def id_of(bus: Bus) -> str:
    """Give the random text that tells this bus from others, as its mesh tells them."""
    return parts_of(bus).services.id


def middleware_of(bus: Bus) -> Sequence[Middleware]:
    """Give what runs around its handlers, the outermost first."""
    return parts_of(bus).services.executor.middleware


def durables_of(bus: Bus) -> Collection[DurableStats]:
    """Give the state of its durable handlers, as `Bus.stats` does. May be called in any thread."""
    return parts_of(bus).links.progress


def mesh_of(bus: Bus) -> Mesh | None:
    """Give what makes it and other buses one; None without a cluster."""
    return parts_of(bus).links.mesh


# -- what it can be asked ----------------------------------------------------------------------------------------------------

OperationStyle: TypeAlias = Literal["request", "notification", "stream", "channel", "publication"]

_STYLES: Final[dict[HandlerStyle, OperationStyle]] = {"stream": "stream", "channel": "channel"}


@frozen
class Operation:
    """One thing that can be asked or told, or is published.

    Attributes:
        subject: Or, of a publication, the pattern.
        style: How.
        takes: The type of the body; None where there is none.
        returns: The type of the answer, or of an item that comes back.
        text: The docstring.
        group: Of a subscription: each publication is for one of the group.
        running: Calls that run at once, where that is limited.
        name: The function or method.
        sent: It is a publication that the application makes.
        durable: Of a durable handler: its name, which its workers share.
    """

    subject: str | int
    style: OperationStyle
    takes: Any
    returns: Any
    text: str = ""
    group: str | None = None
    running: int | None = None
    name: str = ""
    sent: bool = False
    durable: str | None = None


def operations_of(bus: Bus) -> tuple[Operation, ...]:
    """Give all that a bus can be asked or told, and publishes, but for what is polybus's own. May be called in any thread."""
    lookup = parts_of(bus).lookup
    # Copies: in another thread the bus goes on, and may be given more.
    operations = (
        *map(_handled, [*lookup.handlers.values()]),
        *(_heard(spec) for spec in [*lookup.subscribers] if spec.peers),
        *map(_sent, [*lookup.publications.values()]),
    )
    return tuple(one for one in operations if not str(one.subject).startswith(RESERVED_PREFIX))


def _handled(handler: Handler) -> Operation:
    return Operation(
        handler.subject,
        _STYLES.get(handler.style, "request"),
        handler.takes,
        handler.returns,
        "" if handler.signature is None else handler.signature.text,
        running=None if handler.places is None else handler.places.most,
        name=handler.name,
    )


def _heard(spec: SubscriberSpec) -> Operation:
    handler = spec.handler
    text = "" if handler.signature is None else handler.signature.text
    durable = None if spec.reading is None else spec.reading.name
    return Operation(handler.subject, "publication", handler.takes, None, text, spec.group, name=handler.name, durable=durable)


def _sent(publication: Publication) -> Operation:
    subject = publication.subject
    return Operation(subject.name, "publication", subject.takes, None, publication.description, sent=True)


def is_guarded(bus: Bus) -> bool:
    """Tell whether peers need permission: ``Bus(authorize=...)``."""
    return parts_of(bus).services.authorize is not None


def unchecked_of(bus: Bus) -> Mapping[str, str]:
    """Give the handlers whose answers cannot be validated by their types, by name, and why."""
    handlers = parts_of(bus).lookup.handlers.values()
    return {handler.name: why for handler in handlers if (why := handler.unchecked) is not None}


# -- what others add to it ---------------------------------------------------------------------------------------------------


@contextmanager
def overriding(bus: Bus, find: Callable[[Callable[..., Any]], Callable[..., Any] | None], where: str) -> Iterator[None]:
    """Have other functions called in place of those that handlers depend on, as a web framework says at each call.

    Args:
        bus: One that is entered.
        find: Gives what stands in for a function; None where nothing does.
        where: Who says so, for the texts of errors.

    Raises:
        LocalProtocolError: The bus is not entered.
    """
    finders = parts_of(bus).services.running.overriding
    finders.append(finder := provider_finder(find, where))
    try:
        yield
    finally:
        finders.remove(finder)


def links_of(bus: Bus) -> Sequence[BusLink]:
    """Give the links that a bus has opened and not given up."""
    return parts_of(bus).links.opened


def record_with(bus: Bus, recorder: Recorder) -> None:
    """Have the links that a bus opens from now on recorded by a recorder that somebody else opens and closes."""
    parts_of(bus).services.recorders.append(recorder)
