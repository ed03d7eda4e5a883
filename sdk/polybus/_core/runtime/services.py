"""The services that the parts of a bus share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

from ..._util.broadcast import KEPT, EventHub
from ..._util.sources import sources
from ..._util.typed_body import conforming, misfit, uncheckable
from ..._validation import type_name
from ...errors import Code, EncodeError, LocalProtocolError
from ...events import BusEvent, DeadLettered
from ...limits import Limits
from ...stats import Counters
from ...subjects import Subject, check_subject
from .access import AccessControl, Authenticate, Authorize
from .executor import HandlerExecutor

if TYPE_CHECKING:
    from ...message import Message
    from ...outcomes import OutgoingHook
    from ...plugins.recording import Recorder
    from .injection import Provider
    from .runtime import Runtime

_REMEMBERED: Final = 4096


class CheckedSubjects:
    """Subjects that an application may use: checked once against the rules and `Limits.subject`, and remembered as `known`."""

    __slots__ = ("_limit", "known")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.known: set[str | int] = set()

    def check(self, subject: Any) -> None:
        """
        Raises:
            LocalProtocolError: No subject, or one that is too long.
            ReservedSubject: It begins with ``_polybus.``.
        """
        try:
            known = subject in self.known
        except TypeError:  # not hashable, so certainly no subject
            known = False
        if not known:
            check_subject(subject, self._limit)
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known.add(subject)


class Services:
    """Limits, counters, events, access, execution of handlers, and the runtime: handed to each part in place of the bus."""

    def __init__(
        self, bus: Any, limits: Limits, authenticate: Authenticate | None, authorize: Authorize | None, *, debug: bool
    ) -> None:
        self.bus: Any = bus
        """The public object: for `Context.bus`, the lifespan, and the verbs of a `Peer` that are those of the bus."""
        self.id: str = sources.get().urandom(4).hex()
        self.limits: Limits = limits
        self.debug: bool = debug
        """True where clients are sent the text of unexpected exceptions."""
        self.check_answers: bool | Literal["validate"] | None = None
        """The validation of answers and publications by their types; None where the application has not said."""
        self.counters: Counters = Counters()
        self.events: EventHub[BusEvent] = EventHub(self.waiter, self.wake)
        self.emit: Callable[[BusEvent], None] = self.events.emit
        self.access: AccessControl = AccessControl(authenticate, authorize, limits.handshake_timeout)
        self.authorize: Authorize | None = authorize
        self.executor: HandlerExecutor = HandlerExecutor(self)
        self.overrides: dict[Callable[..., Any], Provider] = {}
        """Functions that stand in for those of `Depends`, in tests."""
        self.outgoing: list[OutgoingHook] = []
        """Hooks for what leaves."""
        self.recorders: list[Recorder] = []
        """Recorders of every link."""
        self.subjects: CheckedSubjects = CheckedSubjects(limits.subject)
        self.ready: bool = False
        """True from the lifespan's yield to the beginning of a drain."""
        self.takes_requests: bool = False
        """True while new requests are taken: while it is ready, and when it drains until it has left its groups."""
        self.leaving: bool = False
        """True from the beginning of a drain to the end of the bus."""
        self.runtime: Runtime | None = None
        """Present while the bus is entered."""
        self.was_running: bool = False
        """True once the bus has been entered and left."""
        self.failed: str = ""
        """Why the bus has closed by itself; empty where it has not."""

    def published(self, subject: Subject[Any, Any], body: Any) -> Any:
        """The body of a publication, validated by the type of its subject where the bus wants that.

        Raises:
            EncodeError: It does not fit, or cannot be checked.
        """
        if not self.check_answers:
            return body
        if self.check_answers is True and (problem := uncheckable(subject.takes)) is not None:
            raise EncodeError(f"a publication of {subject.name!r} cannot be checked, {type_name(subject.takes)}: {problem}")
        try:
            return self.sent(body, partial(conforming, target=subject.takes))
        except Exception as error:
            why, _ = misfit(error)
            raise EncodeError(f"a publication of {subject.name!r} takes {type_name(subject.takes)}: {why}") from error

    def sent(self, value: Any, checked: Callable[[Any], Any]) -> Any:
        """The value that is sent of one that is checked here. May raise whatever the check does: it does not fit."""
        made = checked(value)
        return value if self.check_answers == "validate" else made

    def override_of(self, function: Callable[..., Any]) -> Provider | None:
        """Find what stands in for a function of `Depends`: as the bus says, or an application in which it runs."""
        finders = () if self.runtime is None else self.runtime.overriding
        return self.overrides.get(function) or next((found for find in finders if (found := find(function))), None)

    @property
    def running(self) -> Runtime:
        """The runtime.

        Raises:
            LocalProtocolError: The bus is not entered.
        """
        runtime = self.runtime
        if runtime is None:
            if self.was_running:
                raise LocalProtocolError("this bus is not running: its block has ended; enter it again, with `async with bus:`")
            raise LocalProtocolError(
                "this bus is not running: enter it first, with `async with bus:`, connect() or bus.serve(); of a FastAPI "
                "application the lifespan does that, in tests `with TestClient(app):`"
            )
        return runtime

    def waiter(self) -> Any:
        """Make something to await until it is handed to `wake`.

        Raises:
            LocalProtocolError: The bus is not entered, or runs in another thread.
        """
        runtime = self.running
        runtime.check_thread()
        return runtime.loop.waiter()

    def wake(self, waiter: Any) -> None:
        """Let the task that awaits it go on."""
        if self.runtime is not None:
            self.runtime.loop.wake(waiter)

    def signal(self) -> None:
        """Tell a drain that something has ended which it may wait for."""
        if self.runtime is not None:
            self.runtime.notifier.signal()

    def dead_letter(self, peer: Any, message: Message, code: Code, reason: str) -> None:
        """Tell readers of events that a message could not be delivered."""
        if self.events.read:
            kept = message if len(message.raw or b"") <= KEPT else None
            self.emit(DeadLettered(peer=peer, subject=message.subject, code=code, reason=reason, message=kept))
