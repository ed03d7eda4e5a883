"""Handles stored publications that this process has received, and acknowledges them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

import anyio
from attrs import define, field

from ...errors import BusError, Code, LocalProtocolError
from ...outcomes import Misfit, described
from ...plugins.tools import check_given, in_one_line, log_fields, seconds, without_secrets
from ...retry import pause_after
from .dead_letters import Death
from .jetstream import again
from .storage import check_pause

if TYPE_CHECKING:
    from ...integrations import Handler, IteratedQueue, Services
    from ...message import Message
    from ...protocols.nats.stored import ToReader
    from .dead_letters import Graveyard
    from .reader import StoreReader
    from .storage import DurableSpec

logger: logging.Logger = logging.getLogger("polybus.cluster")

_DONE: Final = "+ACK"
GIVEN_BACK: Final = "-NAK"
_AGAIN: Final = 5.0  # Minimum number of seconds until redelivery if the dead letter could not be stored
_UNKNOWN: Final = "no worker finished it or could store its dead letter"
_REMEMBERED: Final = 1024  # Maximum number of reasons to remember while dead letters cannot be stored


@define(eq=False)
class Fate:
    """Decides on redelivery and dead letters for a durable name. `name` identifies the handler in logs."""

    _services: Services
    spec: DurableSpec
    name: str
    _graveyard: Graveyard
    _ends: dict[int, Death] = field(factory=dict, init=False)
    """Reasons why publications became dead letters that could not be stored, by number."""

    def hopeless(self, delivery: Delivery) -> Death | None:
        """Return a reason if a publication must not be retried, otherwise None."""
        to, attempts = delivery.to, self.spec.retry.attempts
        if to.fault:
            return Death(to.attempt, f"it cannot be read: {to.fault}")
        if to.attempt > attempts:
            return self._ends.get(to.number, Death(attempts, _UNKNOWN))
        return None

    def is_last(self, delivery: Delivery) -> bool:
        return delivery.to.attempt >= self.spec.retry.attempts

    def pause(self, delivery: Delivery) -> float:
        return pause_after(self.spec.retry, delivery.to.attempt)

    async def is_over(self, delivery: Delivery, death: Death) -> bool:
        """Store a dead letter for a result of `hopeless`. Returns False if the publication should be retried once more.

        This is the case when the engine is full: the handler may succeed by now, which would free space.
        """
        if delivery.to.fault:
            await self.bury(delivery, death)
        else:
            await self._keep(delivery, death)
        return delivery.ended

    async def bury(self, delivery: Delivery, death: Death) -> None:
        """Store a dead letter and end redelivery. If the letter cannot be stored, the publication is redelivered."""
        await self._keep(delivery, death)
        delivery.end(again(max(_AGAIN, self.pause(delivery))))  # has no effect if the letter was stored

    async def _keep(self, delivery: Delivery, death: Death) -> None:
        message, services, durable, number = delivery.message, self._services, self.spec.name, delivery.to.number
        text = "%.200r of the durable handler %s is a dead letter after %d attempts: %.400s"
        fields = log_fields(message=message, handler=self.name)
        try:
            note, word = await self._graveyard.bury(delivery, self.spec, death, services.running.time())
        except BusError as error:
            said = f"{death.reason}; the letter cannot be stored, so the publication is redelivered: {error}"
            warnings, facts = services.running.warnings, (message.subject, durable, death.attempts, said)
            warnings.warn(logger, text, *facts, about=self, level=logging.ERROR, extra=fields)
            while len(self._ends) >= _REMEMBERED:
                del self._ends[next(iter(self._ends))]
            self._ends[number] = death
            return
        self._ends.pop(number, None)
        logger.error(text, message.subject, durable, death.attempts, f"{death.reason}{note}", extra=fields)
        services.dead_letter(message.peer, message, Code.ABORTED, f"durable {durable}: {death.reason}")
        delivery.end(word)


@define(eq=False)
class Delivery:
    """A stored publication that a reader has received. Implements `message.Settlement`."""

    _reader: StoreReader
    _fate: Fate | None  # `None` if publications are not acknowledged
    message: Message
    to: ToReader
    stream: str
    created: str  # Creation time of the stream
    size: int = field(default=0, init=False)  # Size of the body, in bytes
    read: bool = field(default=False, init=False)  # True once the application has received the publication by iterating
    _decided: str = field(default="", init=False)
    """Decision that the application made with a method of the message, for error texts."""
    ended: bool = field(default=False, init=False)  # True once the publication is acknowledged

    def __attrs_post_init__(self) -> None:
        self.size = len(self.message.raw or b"")

    @property
    def all_came(self) -> bool:
        """True if the whole publication arrived, even if its headers could not be decoded."""
        return not self.to.fault or bool(self.to.block)

    def end(self, word: str) -> None:
        if not self.ended:
            self.ended = True
            self._reader.ended(self, word)

    def done(self) -> None:
        self.end(_DONE)

    def give_back(self) -> None:
        """Let the engine redeliver the publication to any worker at once, unless the application has already decided."""
        if not self._decided:
            self._decided = "was given back when its subscription was closed"
            self.end(GIVEN_BACK)

    def taken(self) -> None:
        self.read = True
        if self._fate is None:
            self.done()
        else:
            self._reader.go_on()

    def ack(self) -> None:
        _ = self._decide("is acknowledged")
        self.end(_DONE)

    def retry(self, delay: float | None) -> None:
        pause = None if delay is None else seconds(delay, "delay")
        check_pause(pause or 0.0, "delay")
        fate = self._decide("is to be retried")
        if fate.is_last(self):
            self._bury(fate, "retry() after the last attempt")
        else:
            self.end(again(fate.pause(self) if pause is None else pause))

    def reject(self, reason: str) -> None:
        check_given(reason, str, "reason", "reason='the order is unknown'")
        self._bury(self._decide("is rejected"), reason or "it was rejected")

    def _bury(self, fate: Fate, reason: str) -> None:
        self._reader.services.running.spawn(fate.bury, self, Death(self.to.attempt, reason))

    def _decide(self, how: str) -> Fate:
        subject = self.message.subject
        if self._fate is None:
            raise LocalProtocolError(f"{subject!r} is only read, without storing a position: add durable='billing' to start=")
        if self._decided:
            raise LocalProtocolError(f"{subject!r} {self._decided} already: call ack(), retry() or reject() only once")
        self._reader.services.running.check_here()
        self._decided = how
        return self._fate


_TEXT: Final = 200  # Maximum length of the error text in a dead letter


@define(eq=False)
class HandlerTaker:
    """Runs a handler for each publication. Implements `reader.Taker`."""

    services: Services
    handler: Handler
    fate: Fate
    full = False

    def take(self, delivery: Delivery) -> None:
        self.services.running.workers.submit(_Job(self, delivery))

    def stop(self) -> None:
        """Do nothing, so that running handlers can finish."""

    async def handle(self, delivery: Delivery, scope: anyio.CancelScope | None) -> None:
        hopeless = self.fate.hopeless(delivery)
        if hopeless is not None and await self.fate.is_over(delivery, hopeless):
            return
        executor, message, name = self.services.executor, delivery.message, self.handler.name
        try:
            await executor.run(self.handler, message, None)
        except Misfit as error:
            self.services.counters.failed += 1
            await self.fate.bury(delivery, Death(delivery.to.attempt, f"invalid body for {name}: {error.text}"))
        except BaseException as error:
            if executor.is_own_cancellation(error, scope) or executor.must_propagate(error, scope):
                raise
            error_id = executor.failed(message, error)
            if self.fate.is_last(delivery):
                await self.fate.bury(delivery, Death(delivery.to.attempt, f"{name} failed: {_words(error)}", error_id))
            else:
                delivery.end(again(self.fate.pause(delivery)))
        else:
            delivery.done()


def _words(error: BaseException) -> str:
    """Return the class and the shortened text of an error. The traceback is in the log."""
    text = in_one_line(without_secrets(described(error))).removesuffix(": ")
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


class _Job:
    __slots__ = ("_delivery", "_taker", "scope", "waited")
    ended = False
    run_plain = None

    def __init__(self, taker: HandlerTaker, delivery: Delivery) -> None:
        self._taker: HandlerTaker = taker
        self._delivery: Delivery = delivery
        self.scope: anyio.CancelScope | None = None
        self.waited: int = 0

    @property
    def function(self) -> str:
        handler = self._taker.handler
        return f"the handler {handler.name} of {handler.subject!r}"

    @property
    def owner(self) -> tuple[object, object]:
        return self._taker, self._taker

    async def run(self) -> None:
        executor, delivery = self._taker.services.executor, self._delivery
        try:
            await self._taker.handle(delivery, self.scope)
        except BaseException as error:
            if not executor.is_own_cancellation(error, self.scope):
                executor.failed(delivery.message, error)
            if executor.must_propagate(error, self.scope):
                raise
        finally:
            delivery.give_back()  # if it was cancelled, another worker gets it at once


@define(eq=False)
class SubscriptionTaker:
    """Queues publications for a subscription. Implements `reader.Taker`."""

    _services: Services
    _subscription: IteratedQueue
    fate: Fate | None  # `None` if publications are not acknowledged

    @property
    def full(self) -> bool:
        return self._subscription.full

    def take(self, delivery: Delivery) -> None:
        fate = self.fate
        hopeless = None if fate is None else fate.hopeless(delivery)
        if fate is not None and hopeless is not None:
            self._services.running.spawn(self._take_last, fate, delivery, hopeless)
        elif delivery.to.fault:
            self._subscription.skip(delivery.message, "this version", delivery.to.fault)
            delivery.done()
        else:
            self._offer(delivery)

    async def _take_last(self, fate: Fate, delivery: Delivery, hopeless: Death) -> None:
        if not await fate.is_over(delivery, hopeless):
            self._offer(delivery)

    def _offer(self, delivery: Delivery) -> None:
        delivery.message.attributes["delivery"] = delivery
        self._subscription.offer(delivery.message)

    def stop(self) -> None:
        self._subscription.end(None)
