"""Deliveries: stored publications that were given to this process, and what becomes of each."""

from __future__ import annotations

import json
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define, evolve, field

from ...errors import BusError, Code, LocalProtocolError
from ...outcomes import Misfit, described
from ...plugins.tools import check_given, in_one_line, log_fields, seconds, without_secrets
from ...retry import pause_after
from .dead_letters import Death
from .jetstream import NANOSECONDS
from .storage import check_pause

if TYPE_CHECKING:
    from ...message import Message
    from ...plugins.parts import BusServices, BusSubscription, HandlerRunner, RegisteredHandler
    from ...protocols.nats.stored import ToReader
    from .dead_letters import Graveyard
    from .reader import StoreReader
    from .storage import DurableSpec

logger: logging.Logger = logging.getLogger("polybus.cluster")

_DONE: Final = "+ACK"
GIVEN_BACK: Final = "-NAK"
_REST: Final = 30 * 86_400.0
"""Seconds for which a publication rests in a store that removes what is dealt with, where nobody else has all of it.

An ordered handler would wait for it: there the engine makes a copy, if it can."""
_AGAIN: Final = 5.0
"""Seconds after which a publication comes again whose dead letter could not be stored, at the least."""
_UNKNOWN: Final = "no worker that had it came to an end with it, or had room for its letter"
_REMEMBERED: Final = 1024
"""Of such publications, those of which is known why."""


@define(eq=False)
class Fate:
    """The part that decides of the publications of one durable name: how often they come, and what is a dead letter.

    Attributes:
        name: Of the handler, or of what reads, for people.
    """

    _services: BusServices
    spec: DurableSpec
    name: str
    _graveyard: Graveyard
    _ends: dict[int, tuple[int, str, str]] = field(factory=dict, init=False)
    """The ends of publications whose dead letters could not be stored, by their numbers."""

    def hopeless(self, delivery: Delivery) -> tuple[int, str, str] | None:
        """Find why a publication is not even tried: as `is_over` is told; None where it is tried."""
        to, attempts = delivery.to, self.spec.retry.attempts
        if to.fault:
            return to.attempt, f"it cannot be read: {to.fault}", ""
        if to.attempt > attempts:
            return self._ends.get(to.number, (attempts, _UNKNOWN, ""))
        return None

    def is_last(self, delivery: Delivery) -> bool:
        """Tell whether there is no more attempt after this one."""
        return delivery.to.attempt >= self.spec.retry.attempts

    def pause(self, delivery: Delivery) -> float:
        """Seconds until a publication comes again."""
        return pause_after(self.spec.retry, delivery.to.attempt)

    async def is_over(self, delivery: Delivery, attempts: int, reason: str, error_id: str) -> bool:
        """Keep a dead letter of what `hopeless` has found, and tell whether that is all that is done with it.

        It is not where the engine has no room for letters: then nobody would ever have the publication, and the store would
        stay as full as it is. Who takes it may be well again.
        """
        if delivery.to.fault:
            await self.bury(delivery, attempts, reason, error_id)
        else:
            await self._keep(delivery, attempts, reason, error_id)
        return delivery.ended

    async def bury(self, delivery: Delivery, attempts: int, reason: str, error_id: str = "") -> None:
        """Keep a dead letter, and have its publication come no more; where that cannot be, have it come again."""
        await self._keep(delivery, attempts, reason, error_id)
        delivery.end(again(max(_AGAIN, self.pause(delivery))))  # of no effect where it has ended

    async def _keep(self, delivery: Delivery, attempts: int, reason: str, error_id: str) -> None:
        """Keep a dead letter, if that can be, and have its publication come no more."""
        message, services, durable = delivery.message, self._services, self.spec.name
        to = delivery.to
        readable, created = not to.fault, delivery.created
        death = Death(attempts, reason, error_id, delivery.stream, to.number, "", readable, to.block, created)
        if death.all_came:  # or its id is not known
            death = evolve(death, id=str(message.id or ""))
        text = "%.200r of the durable handler %s is a dead letter after %d attempts: %.400s"
        fields = log_fields(message=message, handler=self.name)
        try:
            burial = await self._graveyard.bury(message, durable, death, services.running.time(), ordered=self.spec.ordered)
        except BusError as error:
            said = f"{reason}; it cannot be stored, and comes again: {error}"
            warnings, facts = services.running.warnings, (message.subject, durable, attempts, said)
            warnings.warn(logger, text, *facts, about=self, level=logging.ERROR, extra=fields)
            while len(self._ends) >= _REMEMBERED:
                del self._ends[next(iter(self._ends))]
            self._ends[to.number] = attempts, reason, error_id
            return
        self._ends.pop(to.number, None)
        logger.error(text, message.subject, durable, attempts, f"{reason}{burial.note}", extra=fields)
        services.dead_letter(message.peer, message, Code.ABORTED, f"durable {durable}: {reason}")
        delivery.end(again(_REST) if burial.rests else burial.word)


@define(eq=False)
class Delivery:
    """A stored publication that was given to a reader of this process. Implements `message.Settlement`.

    Attributes:
        message: The publication.
        to: The engine's address of it.
        stream: Where it is stored.
        created: When that was made.
        size: Bytes of its body.
        read: True once who iterates has it.
        ended: True once the engine was told what has become of it.
    """

    _reader: StoreReader
    _fate: Fate | None
    """None where nothing is acknowledged."""
    message: Message
    to: ToReader
    stream: str
    created: str
    size: int = field(default=0, init=False)
    read: bool = field(default=False, init=False)
    _decided: str = field(default="", init=False)
    """The decision by a verb of the message, for people."""
    ended: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.size = len(self.message.raw or b"")

    def end(self, word: str) -> None:
        """Tell the engine what has become of it; the first word counts."""
        if not self.ended:
            self.ended = True
            self._reader.ended(self, word)

    def done(self) -> None:
        """Say that it is dealt with."""
        self.end(_DONE)

    def give_back(self) -> None:
        """Have it come again at once, to whoever has room, unless it has been decided on."""
        if not self._decided:
            self._decided = "was given back when its subscription was left"
            self.end(GIVEN_BACK)

    # -- what a message is told --------------------------------------------------------------------------------------------

    def taken(self) -> None:
        """Take note that who iterates has it."""
        self.read = True
        if self._fate is None:
            self.done()
        else:
            self._reader.go_on()

    def ack(self) -> None:
        """Say that it is dealt with.

        Raises:
            LocalProtocolError: As `Message.ack`.
        """
        _ = self._decide("is acknowledged")
        self.end(_DONE)

    def retry(self, delay: float | None) -> None:
        """Have it come again.

        Raises:
            LocalProtocolError, TypeError, ValueError: As `Message.retry`.
        """
        pause = None if delay is None else seconds(delay, "delay")
        check_pause(pause or 0.0, "delay")
        fate = self._decide("is to come again")
        if fate.is_last(self):
            self._bury(fate, "another attempt was asked for after the last one")
        else:
            self.end(again(fate.pause(self) if pause is None else pause))

    def reject(self, reason: str) -> None:
        """Make it a dead letter.

        Raises:
            LocalProtocolError, TypeError: As `Message.reject`.
        """
        check_given(reason, str, "reason", "reason='the order is unknown'")
        self._bury(self._decide("is rejected"), reason or "it was rejected")

    def _bury(self, fate: Fate, reason: str) -> None:
        self._reader.spawn(fate.bury, self, self.to.attempt, reason)

    def _decide(self, how: str) -> Fate:
        subject = self.message.subject
        if self._fate is None:
            raise LocalProtocolError(f"{subject!r} is only read, nothing is kept of that: say durable='billing' beside start=")
        if self._decided:
            raise LocalProtocolError(f"{subject!r} {self._decided} already: one of ack(), retry() and reject(), once")
        self._reader.check_here()
        self._decided = how
        return self._fate


def again(pause: float) -> str:
    """Make the word that has a publication come again after a pause in seconds."""
    return f"-NAK {json.dumps({'delay': round(pause * NANOSECONDS)})}"


_TEXT: Final = 200
"""Characters of a failure that its dead letter says."""


@define(eq=False)
class HandlerTaker:
    """Runs a handler for each publication. Implements `reader.Taker`."""

    _services: BusServices
    handler: RegisteredHandler
    fate: Fate
    full = False

    @property
    def executor(self) -> HandlerRunner:
        """The part that runs handlers."""
        return self._services.executor

    def take(self, delivery: Delivery) -> None:
        """Have a worker of the bus handle a publication."""
        self._services.running.workers.submit(_Job(self, delivery))

    def stop(self) -> None:
        """Take note that nothing more comes: what runs is finished."""

    async def handle(self, delivery: Delivery, scope: anyio.CancelScope | None) -> None:
        """Run the handler for a publication, and settle it."""
        hopeless = self.fate.hopeless(delivery)
        if hopeless is not None and await self.fate.is_over(delivery, *hopeless):
            return
        executor, message, name = self.executor, delivery.message, self.handler.name
        try:
            await executor.run(self.handler, message, None)
        except Misfit as error:
            self._services.counters.failed += 1
            await self.fate.bury(delivery, delivery.to.attempt, f"it does not fit {name}: {error.text}")
        except BaseException as error:
            if executor.is_own_cancellation(error, scope) or executor.must_propagate(error, scope):
                raise
            error_id = executor.publication_failed(message, error)
            if self.fate.is_last(delivery):
                await self.fate.bury(delivery, delivery.to.attempt, f"{name} failed: {_words(error)}", error_id)
            else:
                delivery.end(again(self.fate.pause(delivery)))
        else:
            delivery.done()


def _words(error: BaseException) -> str:
    """Class and text of a failure, as far as an operator needs them to know what it is. Its traceback is in the log."""
    text = in_one_line(without_secrets(described(error))).removesuffix(": ")
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


class _Job:
    """A worker's job: one stored publication."""

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
    def party(self) -> tuple[object, object]:
        return self._taker, self._taker

    def run(self) -> Coroutine[Any, Any, None]:
        return self._run()

    async def _run(self) -> None:
        executor, delivery = self._taker.executor, self._delivery
        try:
            await self._taker.handle(delivery, self.scope)
        except BaseException as error:
            if not executor.is_own_cancellation(error, self.scope):
                executor.publication_failed(delivery.message, error)
            if executor.must_propagate(error, self.scope):
                raise
        finally:
            delivery.give_back()  # where it was cut: another worker has it at once


@define(eq=False)
class SubscriptionTaker:
    """Puts publications into the queue of a subscription. Implements `reader.Taker`."""

    _services: BusServices
    _subscription: BusSubscription
    fate: Fate | None
    """None where nothing is acknowledged."""

    @property
    def full(self) -> bool:
        """True while there is no room for one more."""
        return self._subscription.full

    def take(self, delivery: Delivery) -> None:
        """Queue a publication, but one that is not even tried."""
        fate = self.fate
        hopeless = None if fate is None else fate.hopeless(delivery)
        if fate is not None and hopeless is not None:
            self._services.running.spawn(self._take_last, fate, delivery, hopeless)
        elif delivery.to.fault:
            self._subscription.skip(delivery.message, "this version", delivery.to.fault)
            delivery.done()
        else:
            self._offer(delivery)

    async def _take_last(self, fate: Fate, delivery: Delivery, hopeless: tuple[int, str, str]) -> None:
        if not await fate.is_over(delivery, *hopeless):
            self._offer(delivery)

    def _offer(self, delivery: Delivery) -> None:
        delivery.message.attributes["delivery"] = delivery
        self._subscription.offer(delivery.message)

    def stop(self) -> None:
        """End the iteration after what has come."""
        self._subscription.end(None)
