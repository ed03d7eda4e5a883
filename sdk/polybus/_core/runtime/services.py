"""Provides services for the parts of a bus."""

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
    from ...plugins.extensions import Recorder
    from .injection import Provider
    from .runtime import Runtime

_REMEMBERED: Final = 4096


class CheckedSubjects:
    __slots__ = ("_limit", "known")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.known: set[str | int] = set()

    def check(self, subject: Any) -> None:
        """Check a subject.

        Raises:
            LocalProtocolError: If it is invalid or too long.
            ReservedSubject: If it begins with ``_polybus.``.
        """
        try:
            known = subject in self.known
        except TypeError:  # not hashable
            known = False
        if not known:
            check_subject(subject, self._limit)
            if len(self.known) >= _REMEMBERED:
                self.known.clear()
            self.known.add(subject)


class Services:
    """Limits, counters, events, access control, the handler executor and the runtime, for all parts of a bus."""

    def __init__(
        self, bus: Any, limits: Limits, authenticate: Authenticate | None, authorize: Authorize | None, *, debug: bool
    ) -> None:
        self.bus: Any = bus
        """The public bus, for `Context.bus`, the lifespan and some methods of `Peer`."""
        self.id: str = sources.get().urandom(4).hex()
        self.limits: Limits = limits
        self.debug: bool = debug
        """True to send the messages of unexpected exceptions to clients."""
        self.check_answers: bool | Literal["validate"] | None = None
        """Validation of answers and publications; None if the application has not set it."""
        self.counters: Counters = Counters()
        self.events: EventHub[BusEvent] = EventHub(self.waiter, self.wake)
        self.emit: Callable[[BusEvent], None] = self.events.emit
        self.access: AccessControl = AccessControl(authenticate, authorize, limits.handshake_timeout)
        self.authorize: Authorize | None = authorize
        self.executor: HandlerExecutor = HandlerExecutor(self)
        self.overrides: dict[Callable[..., Any], Provider] = {}
        """Replacements for `Depends` functions, in tests."""
        self.outgoing: list[OutgoingHook] = []
        self.recorders: list[Recorder] = []
        self.subjects: CheckedSubjects = CheckedSubjects(limits.subject)
        self.ready: bool = False
        """True from the lifespan's yield until a drain begins."""
        self.takes_requests: bool = False
        """True while the bus accepts requests. During a drain, it stays True until the bus has left its queue groups."""
        self.leaving: bool = False
        self.runtime: Runtime | None = None
        """Set while the bus is running."""
        self.was_running: bool = False
        self.failed: str = ""
        """Reason why the bus has closed itself, or an empty string."""

    def published(self, subject: Subject[Any, Any], body: Any) -> Any:
        """Validate a publication against the type of its subject, if checks are on.

        Raises:
            EncodeError: If the body doesn't fit, or its type cannot be checked.
        """
        if not self.check_answers:
            return body
        if self.check_answers is True and (problem := uncheckable(subject.takes)) is not None:
            raise EncodeError(f"a publication of {subject.name!r} cannot be validated as {type_name(subject.takes)}: {problem}")
        try:
            return self.sent(body, partial(conforming, target=subject.takes))
        except Exception as error:
            why, _ = misfit(error)
            raise EncodeError(
                f"invalid publication of {subject.name!r}, which is declared with {type_name(subject.takes)}: {why}"
            ) from error

    def sent(self, value: Any, checked: Callable[[Any], Any]) -> Any:
        """Validate a value, and return the value to send. Raises the errors of `checked`."""
        made = checked(value)
        return value if self.check_answers == "validate" else made

    def override_of(self, function: Callable[..., Any]) -> Provider | None:
        finders = () if self.runtime is None else self.runtime.overriding
        return self.overrides.get(function) or next((found for find in finders if (found := find(function))), None)

    @property
    def running(self) -> Runtime:
        """The runtime. Raises `LocalProtocolError` if the bus isn't running."""
        runtime = self.runtime
        if runtime is None:
            if self.was_running:
                raise LocalProtocolError("this bus is not running: its block has ended; enter it again, with `async with bus:`")
            raise LocalProtocolError(
                "this bus is not running: enter it first, with `async with bus:`, connect() or bus.serve(); in FastAPI "
                "the lifespan does it, in tests `with TestClient(app):`"
            )
        return runtime

    def waiter(self) -> Any:
        """Return an awaitable that `wake` completes. Raises `LocalProtocolError` outside the bus's thread."""
        runtime = self.running
        runtime.check_thread()
        return runtime.loop.waiter()

    def wake(self, waiter: Any) -> None:
        if self.runtime is not None:
            self.runtime.loop.wake(waiter)

    def signal(self) -> None:
        if self.runtime is not None:
            self.runtime.notifier.signal()

    def dead_letter(self, peer: Any, message: Message, code: Code, reason: str) -> None:
        if self.events.read:
            kept = message if len(message.raw or b"") <= KEPT else None
            self.emit(DeadLettered(peer=peer, subject=message.subject, code=code, reason=reason, message=kept))
