"""A durable handler in one process: pulls stored publications, runs the handler, and says what has become of each."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, field

from ..._handlers.arguments import Misfit
from ..._util.log_fields import log_fields
from ...body import OCTETS
from ...errors import BusError, Code
from ...message import Kind, Message
from ...plugins import ToEngine, ToReader
from .dead_letters import Death
from .jetstream import NANOSECONDS
from .pull import EXPIRES, HEARTBEAT, Pull

if TYPE_CHECKING:
    from ..._core.executor import HandlerExecutor
    from ..._core.services import Services
    from ..._handlers.durable import DurableSpec
    from ..._handlers.handler import Handler
    from ..._peer.peer import Peer
    from .consumers import Consumers
    from .dead_letters import DeadLetters

logger: logging.Logger = logging.getLogger("polybus.cluster")

_SHARE: Final = 3
"""A part of `ack_wait` after which the engine is told that a handler still runs."""
_AGAIN: Final = 5.0
"""Seconds after which a publication comes again whose dead letter could not be stored."""
_MESSAGE_ID: Final = "Nats-Msg-Id"
_BEAT, _REQUEST_OVER = 100, (404, 408)


@define(eq=False)
class DurableReader:
    """One durable handler in this process."""

    _services: Services
    handler: Handler
    spec: DurableSpec
    number: int
    """Of this reader among those of the bus."""
    subject: str
    """The subject on the wire of what it handles."""
    _consumers: Consumers
    _dead_letters: DeadLetters
    pull: Pull
    stream: str = field(default="", init=False)
    """The name of the stream, once the consumer is found."""
    _peer: Peer | None = field(default=None, init=False)
    _waiting: deque[_Delivery] = field(factory=deque, init=False)
    """Publications beyond the places: of what was asked for twice."""
    _running: dict[_Delivery, float] = field(factory=dict, init=False)
    """Publications that are being handled, with the time at which the engine is told so again."""
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _stopping: bool = field(default=False, init=False)

    @property
    def executor(self) -> HandlerExecutor:
        """The part that runs handlers."""
        return self._services.executor

    @property
    def busy(self) -> bool:
        """True while publications are being handled."""
        return bool(self._running or self._waiting)

    # -- the life of the reader ------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find the consumer, or make it.

        Raises:
            BusError: As `Consumers.prepare`.
        """
        self.stream = await self._consumers.prepare(self.spec, self.subject, self.handler.subject)

    async def run(self) -> None:
        """Pull, until the bus is left."""
        runtime = self._services.running
        while True:
            self._changed = anyio.Event()
            now = runtime.time()
            self.pull.tick(now)
            if self.pull.looks(now):
                await self._look()
            self._work_on(now)
            self._ask(now)
            due = min(self.pull.due, min(self._running.values(), default=math.inf))
            with anyio.move_on_after(None if due == math.inf else max(due - runtime.time(), 0)):
                await self._changed.wait()

    async def _look(self) -> None:
        """Find the consumer again: on another connection, or after the engine has refused."""
        try:
            await self.prepare()
        except BusError as error:
            text = "the durable handler %s waits for its store: %s"
            fields = log_fields(handler=self.handler.name)
            self._services.running.warnings.warn(logger, text, self.spec.name, error, about=self, lines=1, extra=fields)
            self.pull.refused(self._services.running.time())
        else:
            self.pull.found()

    def up(self, peer: Peer) -> None:
        """Begin, or begin anew on another connection."""
        self._peer = peer
        peer.link.answer(Message(Kind.SUBSCRIBE, attributes={"reader": self.number}), peer)
        self.pull.up(self._services.running.time())
        self._changed.set()

    def begin(self, peer: Peer) -> None:
        """Begin to pull."""
        self._stopping = False
        self.up(peer)

    def down(self) -> None:
        """Wait: the link to the engine is down. What was given to this worker and has not begun comes again."""
        self.pull.down()
        self._waiting.clear()

    def withdraw(self) -> None:
        """Ask for nothing more. What has come or is on its way is handled: to give it back would be an attempt, too."""
        self._stopping = True
        self.pull.stop()
        peer = self._peer
        if peer is not None and not peer.gone:
            peer.link.answer(Message(Kind.UNSUBSCRIBE, attributes={"reader": self.number}), peer)

    def _ask(self, now: float) -> None:
        more = self.pull.ask(len(self._running) + len(self._waiting), now)
        peer = self._peer
        if more and peer is not None:
            members = {
                "batch": more,
                "expires": round(EXPIRES * NANOSECONDS),
                "idle_heartbeat": round(HEARTBEAT * NANOSECONDS),
            }
            asked = Message(
                Kind.NOTIFY,
                f"$JS.API.CONSUMER.MSG.NEXT.{self.stream}.{self.spec.name}",
                attributes={"to": ToEngine(), "reader": self.number},
            )
            asked.decoded = members
            peer.link.answer(asked, peer)

    # -- what comes ------------------------------------------------------------------------------------------------------

    def receive(self, message: Message, to: ToReader) -> None:
        """Take a stored publication, or a word of the engine."""
        now = self._services.running.time()
        if to.status:
            self._told(to, now)
            return
        self.pull.came(now)
        delivery = _Delivery(self, message, to)
        message.attributes["attempt"] = to.attempt
        message.id = (message.headers or {}).get(_MESSAGE_ID) or f"{self.stream}.{to.number}"
        if to.only is not None and to.only != self.spec.name:  # it was dealt with here when it came first
            self._say(delivery, "+ACK")
            self._ask(now)
        elif len(self._running) < self.pull.places:
            self._begin(delivery, now)
        elif len(self._waiting) < self.pull.places:
            self._waiting.append(delivery)
        else:
            self._say(delivery, "-NAK")

    def _told(self, to: ToReader, now: float) -> None:
        if to.status == _BEAT:
            self.pull.beat(now)
        elif to.status in _REQUEST_OVER:
            self.pull.expired(to.left, now)
            self._changed.set()
        else:
            self.pull.refused(now)
            self._changed.set()

    def _begin(self, delivery: _Delivery, now: float) -> None:
        self._running[delivery] = now + self.spec.ack_wait / _SHARE
        if len(self._running) == 1:
            self._changed.set()  # or nobody looks when its time has come
        self._services.running.workers.submit(delivery)

    def _work_on(self, now: float) -> None:
        """Tell the engine of handlers that run for long: otherwise it gives what they have to others."""
        for delivery, when in self._running.items():
            if when <= now:
                self._say(delivery, "+WPI")
                self._running[delivery] = now + self.spec.ack_wait / _SHARE

    def ended(self, delivery: _Delivery, word: str) -> None:
        """Say what has become of a publication, and take the next."""
        self._say(delivery, word)
        self._running.pop(delivery, None)
        now = self._services.running.time()
        if self._waiting:
            self._begin(self._waiting.popleft(), now)
        elif not self._stopping:
            self._ask(now)
        self._services.signal()

    def _say(self, delivery: _Delivery, word: str) -> None:
        peer = self._peer
        if peer is not None and not peer.gone:
            said = Message(Kind.NOTIFY, delivery.to.ack, None, word.encode(), OCTETS, attributes={"to": ToEngine()})
            peer.link.answer(said, peer)

    # -- one publication -------------------------------------------------------------------------------------------------

    async def handle(self, delivery: _Delivery) -> str:
        """Run the handler for a publication; gives what the engine is told."""
        attempts, message = self.spec.retry.attempts, delivery.message
        if delivery.to.fault:
            return await self._die(delivery, delivery.to.attempt, f"it cannot be read: {delivery.to.fault}", "")
        if delivery.to.attempt > attempts:
            return await self._die(delivery, attempts, "no worker that had it came to an end with it", "")
        try:
            await self._services.executor.run(self.handler, message, None)
        except Misfit as error:
            self._services.counters.failed += 1
            return await self._die(delivery, delivery.to.attempt, f"it does not fit {self.handler.name}: {error.text}", "")
        except BaseException as error:
            execution, scope = self._services.executor, delivery.scope
            if execution.is_own_cancellation(error, scope) or execution.must_propagate(error, scope):
                raise
            error_id = execution.publication_failed(message, error)
            if delivery.to.attempt >= attempts:
                return await self._die(delivery, attempts, f"{self.handler.name} failed: {type(error).__name__}", error_id)
            pause = self.spec.retry.pause(delivery.to.attempt)
            return f"-NAK {json.dumps({'delay': round(pause * NANOSECONDS)})}"
        return "+ACK"

    async def _die(self, delivery: _Delivery, attempts: int, reason: str, error_id: str) -> str:
        """Keep a dead letter, and have its publication come no more; where that cannot be, have it come again."""
        message, services = delivery.message, self._services
        death = Death(attempts, reason, error_id, self.stream, delivery.to.number)
        text = "%.200r of the durable handler %s is a dead letter after %d attempts: %.300s"
        fields = log_fields(message=message, handler=self.handler.name)
        try:
            await self._dead_letters.keep(message, self.spec.name, death, services.running.time())
        except BusError as error:
            said = f"{reason}; it cannot be stored, and comes again: {error}"
            logger.error(text, message.subject, self.spec.name, attempts, said, extra=fields)
            return f"-NAK {json.dumps({'delay': round(_AGAIN * NANOSECONDS)})}"
        logger.error(text, message.subject, self.spec.name, attempts, reason, extra=fields)
        services.dead_letter(message.peer, message, Code.ABORTED, f"durable {self.spec.name}: {reason}")
        return "+TERM"


class _Delivery:
    """A worker's job: one stored publication."""

    __slots__ = ("message", "reader", "scope", "to", "waited")
    ended = False
    run_plain = None

    def __init__(self, reader: DurableReader, message: Message, to: ToReader) -> None:
        self.reader: DurableReader = reader
        self.message: Message = message
        self.to: ToReader = to
        self.scope: anyio.CancelScope | None = None
        self.waited: int = 0

    @property
    def function(self) -> str:
        return f"the handler {self.reader.handler.name} of {self.reader.handler.subject!r}"

    @property
    def party(self) -> tuple[object, object]:
        return self.reader, self.reader

    def run(self) -> Coroutine[Any, Any, None]:
        return self._run()

    async def _run(self) -> None:
        word = "-NAK"  # where it is cut: another worker has it at once
        reader = self.reader
        execution = reader.executor
        try:
            word = await reader.handle(self)
        except BaseException as error:
            if not execution.is_own_cancellation(error, self.scope):
                execution.publication_failed(self.message, error)
            if execution.must_propagate(error, self.scope):
                raise
        finally:
            reader.ended(self, word)
