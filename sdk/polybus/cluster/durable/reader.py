"""Pulls stored publications, delivers and acknowledges them, for one handler or subscription in this process."""

from __future__ import annotations

import enum
import itertools
import logging
import math
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
from attrs import define, field

from ...body import OCTETS
from ...message import Kind, Message
from ...plugins.tools import log_fields
from ...protocols.nats.stored import ToEngine, ToReader, read_pull
from .dead_letters import ID
from .delivery import Delivery, Fate
from .jetstream import NANOSECONDS

if TYPE_CHECKING:
    from ...integrations import PeerCore, Services
    from .consumers import Consumer

EXPIRES: Final = 30.0
HEARTBEAT: Final = 2.0
"""Seconds between heartbeats. If a restarted server has lost a pull request, a missing heartbeat is the only sign."""
SILENCE: Final = 2 * HEARTBEAT + 1.0  # Seconds without a heartbeat after which a pull request counts as lost
_PAUSE: Final = 1.0


class PullState(enum.Enum):
    OFF = "off"  # The reader has stopped or has no link, and ignores late events
    LOST = "lost"  # The reader must look up or create its consumer
    FULL = "full"  # No pull request is open, because all slots are in use
    ASKING = "asking"


@define(eq=False)
class Pull:
    places: int  # Maximum number of publications that the reader handles at once
    state: PullState = field(default=PullState.OFF, init=False)
    asked: int = field(default=0, init=False)
    """Number of requested publications that have not arrived yet. Always 0 unless the state is `ASKING`."""
    _began: float = field(default=0.0, init=False)  # Start time of the oldest open request
    _came: bool = field(default=False, init=False)  # True if a publication has arrived since `_began`
    _heard: float = field(default=0.0, init=False)
    _look_at: float = field(default=0.0, init=False)  # Time at which to look up a lost consumer

    def up(self, now: float) -> None:
        self.state, self.asked, self._look_at = PullState.LOST, 0, now

    def stop(self) -> None:
        self.state, self.asked = PullState.OFF, 0

    def found(self) -> None:
        if self.state is PullState.LOST:
            self.state = PullState.FULL

    def refused(self, now: float, pause: float = _PAUSE) -> None:
        """Handle an error from the engine. After a pause, the consumer is looked up again."""
        if self.state is not PullState.OFF:
            self.state, self.asked, self._look_at = PullState.LOST, 0, now + pause

    def looks(self, now: float) -> bool:
        return self.state is PullState.LOST and now >= self._look_at

    def ask(self, taken: int, now: float) -> int:
        if self.state not in (PullState.FULL, PullState.ASKING):
            return 0
        more = self.places - taken - self.asked
        # Prefer few large requests, since the engine limits how many are open.
        if more <= 0 or (self.asked and more < self.places // 2):
            return 0
        if not self.asked:
            self._began, self._came = now, False
        self.state = PullState.ASKING
        self.asked += more
        self._heard = now
        return more

    def came(self, now: float) -> None:
        self._heard = now
        self._came = True
        self._served(1)

    def expired(self, left: int | None, now: float) -> None:
        """Handle the end of a request. `left` publications are missing, or all of them if `left` is None.

        If a request ends much too early and nothing has arrived, the engine does not accept it. Repeating it immediately would
        be a busy loop.
        """
        if not self._came and now - self._began < EXPIRES / 2:
            self.refused(now)
            return
        self._heard = now
        self._served(self.asked if left is None else left)

    def _served(self, count: int) -> None:
        self.asked = max(self.asked - count, 0)
        if not self.asked and self.state is PullState.ASKING:
            self.state = PullState.FULL

    def beat(self, now: float) -> None:
        self._heard = now

    def tick(self, now: float) -> None:
        if self.state is PullState.ASKING and now - self._heard >= SILENCE:
            self.refused(now, 0.0)

    @property
    def due(self) -> float:
        """Time of the next `tick` or lookup, otherwise infinity."""
        if self.state is PullState.ASKING:
            return self._heard + SILENCE
        return self._look_at if self.state is PullState.LOST else math.inf


logger: logging.Logger = logging.getLogger("polybus.cluster")

_SHARE: Final = 3  # Number of progress messages sent within `ack_wait`
_MESSAGE_ID: Final = "Nats-Msg-Id"
_BEAT, _REQUEST_OVER = 100, (404, 408)
_IN_PROGRESS: Final = "+WPI"
_COMPLETE: Final = "Batch Completed"  # Status text for a complete request (since 2.11)
_TOO_MUCH: Final = "Message Size Exceeds MaxBytes"  # Status text if the next publication would exceed ``max_bytes``


class Taker(Protocol):
    """Interface of classes that receive a reader's publications: `delivery.HandlerTaker` and `delivery.SubscriptionTaker`.

    `full` is True if another publication would not fit, even if slots are free. `fate` is `None` if publications are not
    acknowledged. `stop` is called when no more publications will follow.
    """

    @property
    def full(self) -> bool: ...
    @property
    def fate(self) -> Fate | None: ...
    def take(self, delivery: Delivery) -> None: ...
    def stop(self) -> None: ...


@define(eq=False)
class StoreReader:
    services: Services
    number: int
    consumer: Consumer
    _taker: Taker
    _pull: Pull
    _peer: PeerCore | None = field(default=None, init=False)
    _waiting: dict[Delivery, float] = field(factory=dict, init=False)
    """Publications that are waiting for a slot or for space, in order of arrival."""
    _running: dict[Delivery, float] = field(factory=dict, init=False)
    """Publications in progress, with the time of the next progress message to the engine, as in `_waiting`."""
    _bytes: int = field(default=0, init=False)  # Total size in bytes of the bodies in progress
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _stopping: bool = field(default=False, init=False)
    _runs: bool = field(default=False, init=False)
    _looking: bool = field(default=False, init=False)
    _found: bool = field(default=False, init=False)  # True if the consumer has been found on this connection
    _forbidden: bool = field(default=False, init=False)
    """True if the engine rejects acknowledgements or requests on this connection."""

    @property
    def busy(self) -> bool:
        return self._taker.fate is not None and bool(self._running or self._waiting)

    async def prepare(self) -> None:
        await self.consumer.prepare()
        self._found = True

    async def _run(self) -> None:
        try:
            await self._pull_on()
        finally:
            self._runs = False

    async def _pull_on(self) -> None:
        runtime = self.services.running
        while not (self._stopping and not self.busy):
            self._changed = anyio.Event()
            now = runtime.time()
            self._pull.tick(now)
            if self._pull.looks(now) and not self._looking:  # in a task, so that progress messages are not delayed
                self._looking = True
                runtime.spawn(self._look)
            self._work_on(now)
            self._ask(now)
            kept = itertools.chain(self._running.values(), self._waiting.values())
            due = min(min(kept, default=math.inf), now + SILENCE)  # by then there may be room for another request
            if not self._looking:
                due = min(due, self._pull.due)
            with anyio.move_on_after(max(due - runtime.time(), 0)):
                await self._changed.wait()

    async def _look(self) -> None:
        try:
            await self.prepare()
        except Exception as error:  # an engine may answer anything; try again as long as the bus runs
            text, title, warnings = "%s waits for its store: %s", self.consumer.title, self.services.running.warnings
            warnings.warn(logger, text, title, error, about=self, lines=1, extra=log_fields(handler=title))
            self._pull.refused(self.services.running.time())
        else:
            self._pull.found()
        finally:
            self._looking = False
            self._changed.set()

    def up(self, peer: PeerCore) -> None:
        if self._stopping or not self._runs:
            return
        self._peer = peer
        self._forbidden = False
        peer.link.answer(Message(Kind.SUBSCRIBE, attributes={"reader": self.number}), peer)
        self._pull.up(self.services.running.time())
        self._changed.set()

    def begin(self, peer: PeerCore) -> None:
        self._stopping = False
        if not self._runs:
            self._runs = True
            self.services.running.spawn(self._run)
        self.up(peer)
        if self._found:
            self._pull.found()

    def down(self) -> None:
        """Pause while the link is down. The engine redelivers publications that the reader has not started."""
        self._found = False
        self._pull.stop()
        if self._taker.fate is not None:  # without acknowledgements, the engine does not redeliver them
            self._waiting.clear()

    def withdraw(self) -> None:
        """Stop pulling. Publications that have arrived are still handled, because giving them back counts as an attempt."""
        self._stopping = True
        self._pull.stop()
        self._changed.set()
        self._unsubscribe()
        self._taker.stop()

    def leave(self) -> None:
        self.withdraw()
        self.give_back()
        self.services.running.spawn(self.consumer.remove)

    def give_back(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for delivery in [*waiting, *self._running]:
            delivery.give_back()

    def go_on(self) -> None:
        now = self.services.running.time()
        while self._waiting and self._has_room:
            delivery = next(iter(self._waiting))
            del self._waiting[delivery]
            self._begin(delivery, now)

    @property
    def _has_room(self) -> bool:
        return len(self._running) < self._pull.places and not self._taker.full

    def _ask(self, now: float) -> None:
        peer = self._peer
        if peer is None or self._bytes >= self.services.limits.total_bytes // 2:
            return
        more = self._pull.ask(len(self._running) + len(self._waiting), now)
        if more:
            session: Any = peer.link.session
            asked = Message(Kind.NOTIFY, self.consumer.asked_at, attributes={"to": ToEngine(), "reader": self.number})
            asked.decoded = {
                "batch": more,
                # The limit is needed because an engine disconnects slow clients.
                "max_bytes": max(self.services.limits.queue_bytes, 2 * session.server.max_payload),
                "expires": round(EXPIRES * NANOSECONDS),
                "idle_heartbeat": round(HEARTBEAT * NANOSECONDS),
            }
            peer.link.answer(asked, peer)

    def receive(self, message: Message, to: ToReader) -> None:
        if self._forbidden:  # the engine redelivers it to other workers
            return
        now = self.services.running.time()
        if to.status:
            self._status(to, now)
            return
        accepted = self.consumer.accepts(to)
        if not accepted:
            if accepted is None:
                self._pull.refused(now)
                self._changed.set()
            return
        self._pull.came(now)
        if to.attempt > 1 and (here := self._here(to.number)) is not None:
            say(self._peer, to, _IN_PROGRESS)  # redelivered after an outage
            here.to = to
            return
        fate = self._taker.fate
        delivery = Delivery(self, fate, message, to, self.consumer.stream, self.consumer.created)
        message.attributes["attempt"] = to.attempt
        headers = message.headers or {}
        own = headers.get(ID) if to.only is not None else None  # a retried dead letter
        message.id = own or headers.get(_MESSAGE_ID) or f"{self.consumer.stream}.{to.number}"
        if fate is not None and to.only is not None and to.only != fate.spec.name:  # retried for another durable
            delivery.done()
        elif self._has_room:
            self._begin(delivery, now)
        elif len(self._waiting) < self._pull.places:
            self._waiting[delivery] = now + self.consumer.ack_wait / _SHARE
        else:
            delivery.give_back()

    def _here(self, number: int) -> Delivery | None:
        deliveries = itertools.chain(self._running, self._waiting)
        return next((delivery for delivery in deliveries if delivery.to.number == number), None)

    def _status(self, to: ToReader, now: float) -> None:
        if to.status == _BEAT or to.text == _COMPLETE:
            self._pull.beat(now)
        elif to.status in _REQUEST_OVER or to.text == _TOO_MUCH:
            self._pull.expired(to.left, now)
            self._changed.set()
        else:
            text = "%s: the engine refuses: %d %.200s"
            warnings, title = self.services.running.warnings, self.consumer.title
            about, fields = (self, "refused"), log_fields(handler=title)
            warnings.warn(logger, text, title, to.status, to.text, about=about, lines=1, extra=fields)
            self._pull.refused(now)
            self._changed.set()

    def forbidden(self, to: ToReader) -> None:
        """Stop on this connection if the engine rejects this consumer's acknowledgements or requests."""
        consumer = self.consumer
        name = f"{consumer.stream}.{consumer.name}"
        if f".{name}." not in f"{to.ack}." or self._pull.state is PullState.OFF:
            return
        fields = log_fields(handler=consumer.title)
        if read_pull(to.ack):
            text = "%s may not pull publications, and takes none. The NATS server says: %.200s; let this user publish to %s"
            logger.error(text, consumer.title, to.text, to.ack, extra=fields)
        else:
            text = (
                "%s may not acknowledge its publications, and takes no more: each would be redelivered until it is a dead "
                "letter. The NATS server says: %.200s; let this user publish to $JS.ACK.%s.>"
            )
            logger.error(text, consumer.title, to.text, name, extra=fields)
        self._forbidden = True
        self._pull.stop()
        self._unsubscribe()  # otherwise the engine would still serve an open request
        self._waiting.clear()

    def _unsubscribe(self) -> None:
        peer = self._peer
        if peer is not None and not peer.gone:
            peer.link.answer(Message(Kind.UNSUBSCRIBE, attributes={"reader": self.number}), peer)

    def _begin(self, delivery: Delivery, now: float) -> None:
        self._running[delivery] = now + self.consumer.ack_wait / _SHARE
        self._bytes += delivery.size
        if len(self._running) == 1:
            self._changed.set()  # so that its progress message is scheduled
        self._taker.take(delivery)

    def _work_on(self, now: float) -> None:
        """Tell the engine which publications are in progress, so that it does not redeliver them."""
        for deliveries in (self._running, self._waiting):
            for delivery, when in deliveries.items():
                if when <= now:
                    say(self._peer, delivery.to, _IN_PROGRESS)
                    deliveries[delivery] = now + self.consumer.ack_wait / _SHARE

    def ended(self, delivery: Delivery, word: str) -> None:
        """Send the acknowledgement `word` for a publication, and start the next publication."""
        if self._taker.fate is not None:
            say(self._peer, delivery.to, word)
        if self._running.pop(delivery, None) is not None:
            self._bytes -= delivery.size
        else:
            self._waiting.pop(delivery, None)
        self.go_on()
        if self._stopping:
            self._changed.set()
        else:
            self._ask(self.services.running.time())
        self.services.signal()


def say(peer: PeerCore | None, to: ToReader, word: str) -> None:
    if peer is not None and not peer.gone:
        said = Message(Kind.NOTIFY, to.ack, None, word.encode(), OCTETS, attributes={"to": ToEngine()})
        peer.link.answer(said, peer)
