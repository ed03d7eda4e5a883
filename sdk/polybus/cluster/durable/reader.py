"""A reader of a store in one process: pulls publications, hands them on, and tells the engine what has become of each."""

from __future__ import annotations

import enum
import itertools
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
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
    from ...plugins.parts import BusPeer, BusServices

EXPIRES: Final = 30.0
"""Seconds for which publications are asked for."""
HEARTBEAT: Final = 2.0
"""Seconds between signs of life while nothing comes.

What was asked for of a server that is killed is forgotten, and only their end tells that: so long a worker stands still."""
SILENCE: Final = 2 * HEARTBEAT + 1.0
"""Seconds without a sign after which what was asked for is forgotten."""
_PAUSE: Final = 1.0
"""Seconds until a consumer is looked for again."""


class PullState(enum.Enum):
    """States of pulling."""

    OFF = "off"
    """There is no link, or no more is to come."""
    LOST = "lost"
    """The consumer is to be looked for, or made."""
    FULL = "full"
    """Nothing is asked for: all places are taken."""
    ASKING = "asking"


class PullEvent(enum.Enum):
    """Events that move it on."""

    UP = "up"
    """The link is there."""
    DOWN = "down"
    FOUND = "found"
    """The consumer is there."""
    ASKED = "asked"
    SERVED = "served"
    """All that was asked for has come, or does not come any more."""
    REFUSED = "refused"
    """The engine says that something is wrong."""
    STOP = "stop"


_OFF, _LOST, _FULL, _ASKING = PullState.OFF, PullState.LOST, PullState.FULL, PullState.ASKING
_ALWAYS: Final = {PullEvent.DOWN: _OFF, PullEvent.STOP: _OFF, PullEvent.UP: _LOST}

TRANSITIONS: Final[Mapping[PullState, Mapping[PullEvent, PullState]]] = {
    # What is still on its way when pulling has ended changes nothing.
    _OFF: {**dict.fromkeys(PullEvent, _OFF), PullEvent.UP: _LOST},
    _LOST: {**dict.fromkeys(PullEvent, _LOST), **_ALWAYS, PullEvent.FOUND: _FULL},
    _FULL: {**dict.fromkeys(PullEvent, _FULL), **_ALWAYS, PullEvent.ASKED: _ASKING, PullEvent.REFUSED: _LOST},
    _ASKING: {**dict.fromkeys(PullEvent, _ASKING), **_ALWAYS, PullEvent.SERVED: _FULL, PullEvent.REFUSED: _LOST},
}


@define(eq=False)
class Pull:
    """The pulling of one handler in one process.

    Attributes:
        places: Publications that it takes at once.
    """

    places: int
    state: PullState = field(default=PullState.OFF, init=False)
    asked: int = field(default=0, init=False)
    """Publications that were asked for and have not come."""
    _began: float = field(default=0.0, init=False)
    """The time at which was asked when nothing was asked for."""
    _came: bool = field(default=False, init=False)
    """True where something has come since."""
    _heard: float = field(default=0.0, init=False)
    _look_at: float = field(default=0.0, init=False)
    """The time at which a lost consumer is looked for."""

    def _move(self, event: PullEvent) -> None:
        self.state = TRANSITIONS[self.state][event]
        if self.state is not PullState.ASKING:
            self.asked = 0

    def up(self, now: float) -> None:
        """Begin, or begin anew on another connection."""
        self._move(PullEvent.UP)
        self._look_at = now

    def down(self) -> None:
        """Wait for the link."""
        self._move(PullEvent.DOWN)

    def stop(self) -> None:
        """Ask for nothing more."""
        self._move(PullEvent.STOP)

    def found(self) -> None:
        """Take note that the consumer is there."""
        self._move(PullEvent.FOUND)

    def refused(self, now: float) -> None:
        """Take note that the engine refuses: look for the consumer again, in a moment."""
        self._move(PullEvent.REFUSED)
        self._look_at = now + _PAUSE

    def looks(self, now: float) -> bool:
        """Tell whether the consumer is to be looked for now."""
        return self.state is PullState.LOST and now >= self._look_at

    def ask(self, taken: int, now: float) -> int:
        """Give how many publications to ask for now, where `taken` places are taken."""
        if self.state not in (PullState.FULL, PullState.ASKING):
            return 0
        more = self.places - taken - self.asked
        if more <= 0 or (self.asked and more < self.places // 2):  # few questions for many, or the engine has too many
            return 0
        if not self.asked:
            self._began, self._came = now, False
        self._move(PullEvent.ASKED)
        self.asked += more
        self._heard = now
        return more

    def came(self, now: float) -> None:
        """Take note of a publication."""
        self._heard = now
        self._came = True
        self._served(1)

    def expired(self, left: int | None, now: float) -> None:
        """Take note that so many of what was asked for do not come any more, or where that is not said, all.

        Where nothing has come, and that is said long before its time, it is a refusal: there is no use in asking again at once.
        """
        if not self._came and now - self._began < EXPIRES / 2:
            self.refused(now)
            return
        self._heard = now
        self._served(self.asked if left is None else left)

    def _served(self, count: int) -> None:
        self.asked = max(self.asked - count, 0)
        if not self.asked:
            self._move(PullEvent.SERVED)

    def beat(self, now: float) -> None:
        """Take note of a sign of life."""
        self._heard = now

    def tick(self, now: float) -> None:
        """Give up what was asked for where no sign has come for long."""
        if self.state is PullState.ASKING and now - self._heard >= SILENCE:
            self._move(PullEvent.REFUSED)
            self._look_at = now

    @property
    def due(self) -> float:
        """The time of the next `tick`, or at which the consumer is looked for; infinite for never."""
        if self.state is PullState.ASKING:
            return self._heard + SILENCE
        return self._look_at if self.state is PullState.LOST else math.inf


logger: logging.Logger = logging.getLogger("polybus.cluster")

_SHARE: Final = 3
"""A part of `ack_wait` after which the engine is told that a publication is still worked on."""
_MESSAGE_ID: Final = "Nats-Msg-Id"
_BEAT, _REQUEST_OVER = 100, (404, 408)
_COMPLETE: Final = "Batch Completed"
"""The word of the engine, since 2.11, when all has been given that was asked for."""
_TOO_MUCH: Final = "Message Size Exceeds MaxBytes"
"""The word of the engine when the next publication would be over the bytes that were asked for."""


class Taker(Protocol):
    """Takes the publications of a reader: `delivery.HandlerTaker`, `delivery.SubscriptionTaker`."""

    @property
    def full(self) -> bool:
        """True while there is no room for one more, whatever places are free."""
        ...

    @property
    def fate(self) -> Fate | None:
        """The part that decides how often publications come; None where nothing is acknowledged."""
        ...

    def take(self, delivery: Delivery) -> None:
        """Take one publication."""

    def stop(self) -> None:
        """Take note that nothing more comes."""


class Consumer(Protocol):
    """Tells the engine's part of a reader: `consumers.DurableConsumer`, `consumers.ReplayConsumer`."""

    @property
    def name(self) -> str:
        """The name that the engine knows."""
        ...

    @property
    def stream(self) -> str:
        """The stream that it reads."""
        ...

    @property
    def created(self) -> str:
        """The moment at which that stream was made, as the engine writes it; empty where that is not known."""
        ...

    @property
    def asked_at(self) -> str:
        """The subject at which it is asked for publications."""
        ...

    @property
    def title(self) -> str:
        """The whole, for people."""
        ...

    @property
    def ack_wait(self) -> float:
        """Seconds after which a publication comes again of which nothing is heard; infinite for never."""
        ...

    async def prepare(self) -> None:
        """Find it, or make it."""

    def accepts(self, to: ToReader) -> bool | None:
        """Tell whether a publication is to be handed on; None where one before it is missing, and all are asked for anew."""
        ...

    async def remove(self) -> None:
        """Remove it, where nobody needs it any more."""


@define(eq=False)
class StoreReader:
    """One reader of a store in this process."""

    _services: BusServices
    number: int
    """Of this reader among those of the bus."""
    _consumer: Consumer
    _taker: Taker
    _pull: Pull
    _peer: BusPeer | None = field(default=None, init=False)
    _waiting: dict[Delivery, float] = field(factory=dict, init=False)
    """Publications beyond the places or the room: what was asked for twice, or is large; in the order in which they came."""
    _running: dict[Delivery, float] = field(factory=dict, init=False)
    """Publications that are being worked on. As of `_waiting`, with the time at which the engine is told again not to give them
    to others."""
    _bytes: int = field(default=0, init=False)
    """Bytes of the bodies of these."""
    _changed: anyio.Event = field(factory=anyio.Event, init=False)
    _stopping: bool = field(default=False, init=False)
    _runs: bool = field(default=False, init=False)
    _looking: bool = field(default=False, init=False)
    _found: bool = field(default=False, init=False)
    """True where the consumer was found on this connection, and is not looked for once more."""
    _forbidden: bool = field(default=False, init=False)
    """True where the engine takes no word or question of it on this connection."""

    @property
    def busy(self) -> bool:
        """True while publications are being worked on that are to be acknowledged."""
        return self._taker.fate is not None and bool(self._running or self._waiting)

    def check_here(self) -> None:
        """
        Raises:
            LocalProtocolError: The caller runs in another event loop, or in a thread without one.
        """
        self._services.running.check_here()

    def spawn(self, function: Callable[..., Awaitable[Any]], *args: Any) -> None:
        """Run a coroutine function as a task of the bus."""
        self._services.running.spawn(function, *args)

    # -- the life of the reader ------------------------------------------------------------------------------------------

    async def prepare(self) -> None:
        """Find the consumer, or make it.

        Raises:
            BusError: As `Consumers.prepare`.
        """
        await self._consumer.prepare()
        self._found = True

    async def run(self) -> None:
        """Pull, until the bus is left, or this is stopped and nothing is worked on any more."""
        try:
            await self._pull_on()
        finally:
            self._runs = False

    async def _pull_on(self) -> None:
        runtime = self._services.running
        while not (self._stopping and not self.busy):
            self._changed = anyio.Event()
            now = runtime.time()
            self._pull.tick(now)
            if self._pull.looks(now) and not self._looking:  # beside what runs, of which the engine is told meanwhile
                self._looking = True
                self.spawn(self._look)
            self._work_on(now)
            self._ask(now)
            kept = itertools.chain(self._running.values(), self._waiting.values())
            due = min(min(kept, default=math.inf), now + SILENCE)  # in which something may be asked for
            if not self._looking:
                due = min(due, self._pull.due)
            with anyio.move_on_after(max(due - runtime.time(), 0)):
                await self._changed.wait()

    async def _look(self) -> None:
        """Find the consumer again: on another connection, or after the engine has refused."""
        try:
            await self.prepare()
        except Exception as error:  # whatever an engine may say: this goes on as long as the bus
            text = "%s waits for its store: %s"
            fields = log_fields(handler=self._consumer.title)
            warnings = self._services.running.warnings
            warnings.warn(logger, text, self._consumer.title, error, about=self, lines=1, extra=fields)
            self._pull.refused(self._services.running.time())
        else:
            self._pull.found()
        finally:
            self._looking = False
            self._changed.set()

    def up(self, peer: BusPeer) -> None:
        """Begin anew on another connection."""
        if self._stopping or not self._runs:
            return
        self._peer = peer
        self._forbidden = False
        peer.link.answer(Message(Kind.SUBSCRIBE, attributes={"reader": self.number}), peer)
        self._pull.up(self._services.running.time())
        self._changed.set()

    def begin(self, peer: BusPeer) -> None:
        """Begin to pull."""
        self._stopping = False
        if not self._runs:
            self._runs = True
            self.spawn(self.run)
        self.up(peer)
        if self._found:
            self._pull.found()

    def down(self) -> None:
        """Wait: the link to the engine is down. What was given to this worker and has not begun comes again."""
        self._found = False
        self._pull.down()
        if self._taker.fate is not None:  # what is only read does not: it is read on behind it
            self._waiting.clear()

    def withdraw(self) -> None:
        """Ask for nothing more. What has come or is on its way is handled: to give it back would be an attempt, too."""
        self._stopping = True
        self._pull.stop()
        self._changed.set()
        self._unsubscribe()
        self._taker.stop()

    def leave(self) -> None:
        """Ask for nothing more, and give back what has come."""
        self.withdraw()
        self.give_back()
        self.spawn(self._consumer.remove)

    def give_back(self) -> None:
        """Have what has come and is not decided on come again at once, to others."""
        waiting, self._waiting = self._waiting, {}
        for delivery in [*waiting, *self._running]:
            delivery.give_back()

    def go_on(self) -> None:
        """Take in what has waited for room."""
        now = self._services.running.time()
        while self._waiting and self._has_room:
            delivery = next(iter(self._waiting))
            del self._waiting[delivery]
            self._begin(delivery, now)

    @property
    def _has_room(self) -> bool:
        return len(self._running) < self._pull.places and not self._taker.full

    def _ask(self, now: float) -> None:
        peer = self._peer
        if peer is None or self._bytes >= self._services.limits.total_bytes // 2:
            return
        more = self._pull.ask(len(self._running) + len(self._waiting), now)
        if more:
            members = {
                "batch": more,
                "max_bytes": self._most_bytes(peer),
                "expires": round(EXPIRES * NANOSECONDS),
                "idle_heartbeat": round(HEARTBEAT * NANOSECONDS),
            }
            asked = Message(
                Kind.NOTIFY,
                self._consumer.asked_at,
                attributes={"to": ToEngine(), "reader": self.number},
            )
            asked.decoded = members
            peer.link.answer(asked, peer)

    def _most_bytes(self, peer: BusPeer) -> int:
        """Bytes that are asked for at once: an engine ends the link of who does not read what it has written."""
        session: Any = peer.link.session
        largest: int = session.server.max_payload
        return max(self._services.limits.queue_bytes, 2 * largest)

    # -- what comes ------------------------------------------------------------------------------------------------------

    def receive(self, message: Message, to: ToReader) -> None:
        """Take a stored publication, or a word of the engine."""
        if self._forbidden:  # it comes again, to others
            return
        now = self._services.running.time()
        if to.status:
            self._told(to, now)
            return
        accepted = self._consumer.accepts(to)
        if not accepted:
            if accepted is None:
                self._pull.refused(now)
                self._changed.set()
            return
        self._pull.came(now)
        if to.attempt > 1 and (here := self._here(to.number)) is not None:
            say(self._peer, to, "+WPI")  # it came again after an outage, and is being worked on still
            here.to = to
            return
        fate = self._taker.fate
        delivery = Delivery(self, fate, message, to, self._consumer.stream, self._consumer.created)
        message.attributes["attempt"] = to.attempt
        headers = message.headers or {}
        own = headers.get(ID) if to.only is not None else None  # of a dead letter that is tried again
        message.id = own or headers.get(_MESSAGE_ID) or f"{self._consumer.stream}.{to.number}"
        if fate is not None and to.only is not None and to.only != fate.spec.name:  # it was dealt with here when it came first
            delivery.done()
        elif self._has_room:
            self._begin(delivery, now)
        elif len(self._waiting) < self._pull.places:
            self._waiting[delivery] = now + self._consumer.ack_wait / _SHARE
        else:
            delivery.give_back()

    def _here(self, number: int) -> Delivery | None:
        deliveries = itertools.chain(self._running, self._waiting)
        return next((delivery for delivery in deliveries if delivery.to.number == number), None)

    def _told(self, to: ToReader, now: float) -> None:
        if to.status == _BEAT or to.text == _COMPLETE:
            self._pull.beat(now)
        elif to.status in _REQUEST_OVER or to.text == _TOO_MUCH:
            self._pull.expired(to.left, now)
            self._changed.set()
        else:
            text = "%s: the engine refuses: %d %.200s"
            warnings, title = self._services.running.warnings, self._consumer.title
            fields = log_fields(handler=title)
            warnings.warn(logger, text, title, to.status, to.text, about=(self, "refused"), lines=1, extra=fields)
            self._pull.refused(now)
            self._changed.set()

    def forbidden(self, to: ToReader) -> None:
        """Take no more on this connection, if this is the consumer of which the engine takes no word, or no question."""
        consumer = self._consumer
        name = f"{consumer.stream}.{consumer.name}"
        if f".{name}." not in f"{to.ack}." or self._pull.state is PullState.OFF:
            return
        fields = log_fields(handler=consumer.title)
        if read_pull(to.ack):
            text = "%s may not ask for publications, and takes none. The NATS server says: %.200s; let this user publish to %s"
            logger.error(text, consumer.title, to.text, to.ack, extra=fields)
        else:
            text = (
                "%s may not say what has become of its publications, and takes no more: each would come again, and in the end "
                "be a dead letter. The NATS server says: %.200s; let this user publish to $JS.ACK.%s.>"
            )
            logger.error(text, consumer.title, to.text, name, extra=fields)
        self._forbidden = True
        self._pull.stop()
        self._unsubscribe()  # what has been asked for would still come, for as long as the question stands
        self._waiting.clear()

    def _unsubscribe(self) -> None:
        peer = self._peer
        if peer is not None and not peer.gone:
            peer.link.answer(Message(Kind.UNSUBSCRIBE, attributes={"reader": self.number}), peer)

    def _begin(self, delivery: Delivery, now: float) -> None:
        self._running[delivery] = now + self._consumer.ack_wait / _SHARE
        self._bytes += delivery.size
        if len(self._running) == 1:
            self._changed.set()  # or nobody looks when its time has come
        self._taker.take(delivery)

    def _work_on(self, now: float) -> None:
        """Tell the engine what is worked on for long, or waits for that here: otherwise it gives it to others."""
        for deliveries in (self._running, self._waiting):
            for delivery, when in deliveries.items():
                if when <= now:
                    say(self._peer, delivery.to, "+WPI")
                    deliveries[delivery] = now + self._consumer.ack_wait / _SHARE

    def ended(self, delivery: Delivery, word: str) -> None:
        """Say what has become of a publication, and take the next."""
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
            self._ask(self._services.running.time())
        self._services.signal()


def say(peer: BusPeer | None, to: ToReader, word: str) -> None:
    """Tell the engine what has become of a publication; nothing while it is not there."""
    if peer is not None and not peer.gone:
        said = Message(Kind.NOTIFY, to.ack, None, word.encode(), OCTETS, attributes={"to": ToEngine()})
        peer.link.answer(said, peer)
