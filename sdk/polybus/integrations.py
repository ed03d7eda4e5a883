"""Access to a bus for integrations such as metrics, tracing, web frameworks, recorders, stores and test tools.

These functions expose state that `Bus` itself does not. `parts_of` returns the internal parts of a bus, and `Runtime` runs
transports without a bus. Both belong to the core and may change between releases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypeVar

from attrs import frozen

from ._core.bus.bus import Bus, Recording, parts_of
from ._core.bus.bus_parts import BusParts
from ._core.bus.dialer import Headers
from ._core.bus.forwarding import ForwardingRoute
from ._core.bus.lifecycle import DRAIN, STREAMS_SHARE, raised_by_lifespan
from ._core.handlers.handler import Handler, SubscriberSpec
from ._core.handlers.providers import provider_finder
from ._core.handlers.signature import injected_as
from ._core.link.link import Link
from ._core.peer.peer_core import PeerCore
from ._core.peer.subscription import IteratedQueue
from ._core.pubsub.handler_subscription import HandlerSubscription
from ._core.pubsub.publisher import OF_PEERS
from ._core.runtime.access import AccessControl, Admissions, Authenticate
from ._core.runtime.context import State_co, current_call
from ._core.runtime.executor import HandlerExecutor
from ._core.runtime.runtime import Runtime, buses_here
from ._core.runtime.services import Services
from ._core.runtime.threads import CallThreads, waiting_in_thread
from ._util.process_end import end_by_sigterm
from ._validation import counted
from .subjects import RESERVED_PREFIX

if TYPE_CHECKING:
    from ._core.handlers.lookup import Publication
    from ._core.handlers.signature import Style as HandlerStyle
    from ._core.runtime.executor import Middleware
    from .plugins import Host
    from .plugins.extensions import Mesh, Recorder
    from .stats import DurableStats

__all__ = [
    "AccessControl", "Admissions", "Authenticate", "BusParts", "CallThreads", "DRAIN", "ForwardingRoute", "Handler",
    "HandlerExecutor", "HandlerSubscription", "Headers", "IteratedQueue", "Link", "OF_PEERS", "Operation", "OperationStyle",
    "PeerCore", "STREAMS_SHARE", "Recording", "Runtime", "Services", "State_co",
    "SubscriberSpec", "buses_here", "call_in_loop", "current_call", "durables_of", "failure_of", "host_of", "id_of",
    "injected_as", "is_entered", "is_guarded", "links_of", "mesh_of", "middleware_of", "operations_of", "overriding",
    "parts_of", "raised_by_lifespan", "record_with", "tell_of_threads_left", "unchecked_of", "until",
    "waiting_in_thread",
]  # fmt: skip

T = TypeVar("T")

logger: logging.Logger = logging.getLogger("polybus")

# -- its state ---------------------------------------------------------------------------------------------------------------


def is_entered(bus: Bus) -> bool:
    """Return True while a bus is entered."""
    return parts_of(bus).services.runtime is not None


def failure_of(bus: Bus) -> str:
    """Return why a bus closed itself, or an empty string."""
    return parts_of(bus).services.failed


def host_of(bus: Bus) -> Host:
    """Return the services that a bus offers to a transport, such as its clock and its tasks.

    Raises:
        LocalProtocolError: If the bus is not entered, or runs in another event loop.
    """
    runtime = parts_of(bus).services.running
    runtime.check_here()
    return runtime


def call_in_loop(bus: Bus, function: Callable[[], T], timeout: float) -> T:
    """Call a function in the event loop of a bus, from any thread. If the bus is not entered, call the function in the current
    thread.

    Raises:
        TimeoutError: If the event loop does not call the function within `timeout` seconds.
        Exception: If the function raises it.
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
    except RuntimeError:  # the event loop is closed
        return function()
    return answer.result(timeout)


def tell_of_threads_left(buses: Iterable[Bus]) -> bool:
    """Log `def` handlers that still run after their bus has stopped. Returns True if the interpreter waits for them."""
    left = [each for bus in buses for each in parts_of(bus).services.executor.threads_left]
    waits = any(waited_for for _, waited_for in left)
    if left:
        names = ", ".join(sorted({name for name, _ in left}))
        what = "the process waits for them; a signal ends it at once" if waits else "they end with the process"
        logger.warning(
            "def handlers run after the end of the bus, in %s (%.400s): %s", counted(len(left), "thread"), names, what
        )
        end_by_sigterm()  # the event loop has handled it until now
    return waits


async def until(bus: Bus, condition: Callable[[], bool]) -> None:
    """Wait until a condition is true. The condition may depend on the state of the bus, such as its links, nodes or requests.

    Raises:
        LocalProtocolError: If the bus is not entered.
    """
    await parts_of(bus).services.running.notifier.until(condition)


def id_of(bus: Bus) -> str:
    """Return the random id that identifies this bus in a mesh."""
    return parts_of(bus).services.id


def middleware_of(bus: Bus) -> Sequence[Middleware]:
    """Return the middleware around the handlers of a bus, outermost first."""
    return parts_of(bus).services.executor.middleware


def durables_of(bus: Bus) -> Collection[DurableStats]:
    """Return the state of the durable handlers of a bus, as in `Bus.stats`. Can be called from any thread."""
    return parts_of(bus).links.progress


def mesh_of(bus: Bus) -> Mesh | None:
    """Return the mesh that connects a bus to other buses, or None if the bus has no cluster."""
    return parts_of(bus).links.mesh


# -- what it can be asked ----------------------------------------------------------------------------------------------------

OperationStyle: TypeAlias = Literal["request", "notification", "stream", "channel", "publication"]

_STYLES: Final[dict[HandlerStyle, OperationStyle]] = {"stream": "stream", "channel": "channel"}


@frozen
class Operation:
    """A handler, a subscription, or a publication of the application.

    Attributes:
        subject: The subject, or a pattern for a subscription or publication.
        style: Kind of call.
        takes: Type of the body, or None if there is no body.
        returns: Type of the response, or of each item in a stream or channel.
        text: The docstring.
        group: Queue group of a subscription.
        running: Maximum number of concurrent calls, or None if it is not limited.
        name: Name of the function or method.
        sent: True if the application publishes this subject.
        durable: Name of a durable handler, which its workers share.
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
    """Return the handlers, subscriptions and declared publications of a bus. Can be called from any thread."""
    lookup = parts_of(bus).lookup
    # Copies: the event loop may add operations while another thread reads.
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
    """Return True if the bus was created with ``Bus(authorize=...)``."""
    return parts_of(bus).services.authorize is not None


def unchecked_of(bus: Bus) -> Mapping[str, str]:
    """Return the names of handlers with results that cannot be validated, and why."""
    handlers = parts_of(bus).lookup.handlers.values()
    return {handler.name: why for handler in handlers if (why := handler.unchecked) is not None}


# -- what others add to it ---------------------------------------------------------------------------------------------------


@contextmanager
def overriding(bus: Bus, find: Callable[[Callable[..., Any]], Callable[..., Any] | None], where: str) -> Iterator[None]:
    """Override dependencies of handlers. `find` is called each time a handler runs, so a web framework can change its overrides
    at any time.

    Args:
        bus: A bus that has been entered.
        find: Returns the replacement for a function, or None.
        where: Name of the framework, for error texts.

    Raises:
        LocalProtocolError: If the bus is not entered.
    """
    finders = parts_of(bus).services.running.overriding
    finders.append(finder := provider_finder(find, where))
    try:
        yield
    finally:
        finders.remove(finder)


def links_of(bus: Bus) -> Sequence[Link]:
    """Return the links that a bus has opened, including links that are reconnecting."""
    return parts_of(bus).links.opened


def record_with(bus: Bus, recorder: Recorder) -> None:
    """Record all links that a bus opens from now on. You open and close the recorder."""
    parts_of(bus).services.recorders.append(recorder)
