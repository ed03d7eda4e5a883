"""Requests and notifications of a peer: from their arrival to their answer, and what they make the bus keep meanwhile."""

from __future__ import annotations

import logging
import math
from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from ..._util.deadlines import Deadlines
from ..._util.log_fields import log_fields
from ..._util.priority_queue import PriorityQueue
from ...errors import Code
from ...headers import VIA
from ...message import Kind, Message
from ...subjects import RESERVED_PREFIX
from ..rpc.call import Call, RefusedCall
from ..runtime.memory import LARGE, MemoryBudget, cost, trim
from ..runtime.via import ViaHeader
from . import authorization_queue
from .responses import refuse_duplicate, response_to, send_error

if TYPE_CHECKING:
    from ..handlers.handler import Handler
    from ..link.link import Link
    from ..runtime.memory import Share
    from ..runtime.runtime import Runtime
    from ..runtime.workers import Places
    from .party import PeerParty

logger: logging.Logger = logging.getLogger("polybus")

DRAINING = "this bus takes no requests now, it is draining or has not started yet: ask another, or later"

_REQUEST: Final = Kind.REQUEST
_FIRST = 1_000
"""The level of calls that had a place already: above all that a wire has, as is the one below it."""

_LOOK: Final = 0.01
"""Seconds at least between two looks at calls of which nobody knows how large their answers are."""
_WAITS: Final = 4
"""Looks in a row that have found a call where it was: it is taken for one that may wait for anything, such as another call.
Looks are counted, not seconds: between two of them a machine that is busy has let it go on if it could."""
_POLLS: Final = 16
"""Looks that have found a call waiting, wherever: it may look for something again and again."""

_PASSED_BY: Final = 32
"""Peers that are looked at in vain when a place becomes free: each place that does so moves on among them."""


class InboundCalls:
    """The requests of one peer that are being served, running or waiting; the `ResponseSink` of their outcomes."""

    __slots__ = (
        "_deadlines",
        "budget",
        "calls",
        "channel_calls",
        "expected",
        "held",
        "large",
        "link",
        "looked",
        "peer",
        "stopping",
        "waiting",
    )

    def __init__(self, peer: PeerParty) -> None:
        self.peer: PeerParty = peer
        self.link: Link = peer.link
        self.budget: MemoryBudget = peer.budget
        """The peer's: requests that wait are charged to it."""
        self.calls: dict[Any, Call] = {}
        """Requests that run or wait, by their id."""
        self.channel_calls: int = 0
        """The number of them that are streams and channels."""
        self._deadlines = Deadlines()
        self.waiting: deque[Call] | PriorityQueue[Call] | None = None
        """Requests that wait for a place: in order, and by urgency where the wire has priorities."""
        self.held: int = 0
        """Requests that wait for a place of their handler, and take none of this peer meanwhile."""
        self.large: dict[Call, int] | None = None
        """Costs of the large bodies of requests that run."""
        self.expected: dict[Call, int] | None = None
        """Bytes set aside for the large answers that requests which run will have, as far as that can be foreseen."""
        self.looked: float = -math.inf
        """Time of the last look at the calls among these."""
        self.stopping: int = 0
        """Handlers of requests that are over already: each keeps its place until it returns."""

    # -- arrivals --------------------------------------------------------------------------------------------------------

    def request(self, message: Message, now: float) -> None:
        """Take a request: start its handler, let it wait, or refuse it."""
        link, peer, calls = self.link, self.peer, self.calls
        lookup, services = peer.host.lookup, link.services
        if message.id in calls:
            refuse_duplicate(peer, message, now)
            return
        ttl = message.ttl
        if ttl is not None and ttl <= 0:
            services.counters.refused += 1
            send_error(peer, message, Code.DEADLINE_EXCEEDED, "the deadline had passed on arrival")
            return
        handler = lookup.handlers.get(message.subject) or lookup.find_for(message)
        deadline = math.inf if ttl is None else now + ttl
        call: Call
        if handler is None or not services.takes_requests or handler.style in ("stream", "channel"):
            unhandled = self._unhandled(message, handler, deadline)
            if unhandled is None:
                return
            call = unhandled
        else:
            if message.headers is not None and VIA in message.headers:
                ViaHeader.strip(message)
            call = Call(services, self, peer, handler, message, deadline, handler.places)
        calls[message.id] = call
        self._admit(call)
        if deadline < self._deadlines.until:
            self._watch(call)

    def _unhandled(self, message: Message, handler: Handler | None, deadline: float) -> Call | None:
        """Answer a request that no handler gets; a call where `authorize` is asked before the answer."""
        peer, subject = self.peer, message.subject
        lookup, services = peer.host.lookup, self.link.services
        if isinstance(subject, str) and subject.startswith(RESERVED_PREFIX):
            authorization_queue.hello(peer, message)
            return None
        if not services.takes_requests:
            services.counters.refused += 1
            send_error(peer, message, Code.UNAVAILABLE, DRAINING)
            return None
        if handler is None and (side := lookup.side_for(message, "request")) is not None:
            passing: Call = side.requests.call(self, peer, message, deadline)
            return passing
        if handler is None:
            problem = Code.UNIMPLEMENTED, f"nobody handles {subject!r} here"
            self._hint(subject)
        else:
            problem = Code.INVALID_ARGUMENT, f"{subject!r} is a {handler.style}: use bus.{handler.style}()"
        if services.authorize is not None:
            return RefusedCall(self, peer, message, deadline, *problem)
        services.counters.refused += 1
        send_error(peer, message, *problem)
        return None

    def _hint(self, subject: str | int) -> None:
        """Log what an asker may have meant, now and then: the asker is a stranger, and is not told what there is."""
        template = "%s asks for %.200r, which nobody handles: %s"
        if self.link.runtime.warnings.allows(template) and (meant := self.peer.host.lookup.meant(subject)):
            logger.info(template, self.peer, subject, meant, extra=log_fields(self.peer, subject=subject))

    def notify(self, message: Message) -> None:
        """Take a notification: as a request, but for the answer."""
        link, peer = self.link, self.peer
        lookup, services = peer.host.lookup, link.services
        handler = lookup.find_for(message)
        side = None
        if handler is None and services.takes_requests:
            session = link.session
            # To that peer a publication and a notification are one thing, which has come as the former just before.
            published = session is not None and session.capabilities.handlers
            if published and peer.host.pubsub.receiver.takes(message):
                return
            if not published or lookup.side_for(message, "publish") is None:  # else it has crossed a bridge so
                side = lookup.side_for(message, "request")
        if side is None and (handler is None or not services.takes_requests or handler.style in ("stream", "channel")):
            # No answer was asked for, so none is refused; as for a publication without a subscriber, it is no offence.
            why = "no handler" if handler is None else f"a {handler.style} handler" if services.takes_requests else "draining"
            services.counters.refused += handler is not None
            code = Code.UNAVAILABLE if not services.takes_requests else Code.UNIMPLEMENTED
            services.dead_letter(peer.public, message, code, why)
            return
        deadline = math.inf if message.expires is None else message.expires
        call: Call
        if side is not None:
            call = side.requests.call(self, peer, message, deadline)
        else:
            assert handler is not None
            if message.headers is not None and VIA in message.headers:
                ViaHeader.strip(message)
            call = Call(services, self, peer, handler, message, deadline, handler.places)
        message.id = call  # unique, and never written
        self.start(call)

    def start(self, call: Call) -> None:
        """Start a call that has been made elsewhere, let it wait, or refuse it."""
        self.calls[call.message.id] = call
        self.channel_calls += call.of_channel
        self._admit(call)
        if call.deadline < self._deadlines.until:
            self._watch(call)

    def _watch(self, call: Call) -> None:
        self._deadlines.add(call.deadline, call.message.id)
        self.peer.watch(call.deadline)

    def expire(self, now: float) -> float:
        """Refuse what is past its deadline. The earliest one that remains."""
        for call in self._deadlines.due(now, self.calls):
            call.expire()
        return self._deadlines.next

    def cancel(self, message: Message) -> None:
        """Stop the handler of a request: the peer waits no more for its answer."""
        call = self.calls.get(message.id)
        if call is None:
            return
        call.stop()
        session = self.link.session
        if session is not None and session.capabilities.scarce_ids and call.message.kind is Kind.REQUEST:
            send_error(self.peer, call.message, Code.CANCELLED, "cancelled by the client", delivered=True)

    # -- outcomes --------------------------------------------------------------------------------------------------------

    def answer(self, call: Call, value: Any) -> None:
        message = call.message
        if message.kind is _REQUEST:
            link = self.link
            if link.tell is not None and link.flowing and message.answer_headers is None and not call.forwards:
                raw = None if value is None else link.format.encode(value)
                answers = call.handler.answers
                if answers.weight or (raw is not None and len(raw) > LARGE):
                    answers.learn(len(raw or b""), link.runtime.time())
                frame = link.tell(message.id, raw)
                link.services.counters.sent += 1
                ((len(self.calls) == 1 and link.send_alone) or link.transport.send)(frame)  # type: ignore[union-attr]
                return
            link.answer(response_to(message, value, link, call), self.peer, alone=len(self.calls) == 1)

    async def answer_later(self, call: Call, value: Any) -> None:
        """`answer`, when less waits for the peer. Until then it is charged, and keeps its place among those of this peer.

        Raises:
            EncodeError: It cannot be written.
        """
        if call.ended or call.message.kind is not Kind.REQUEST:
            return
        link, runtime = self.link, self.link.runtime
        response = response_to(call.message, value, link, call)
        value = None  # what waits shall not be held twice
        trim(response)
        if call.places is not None:
            call.places.leave(call)
        held, size = MemoryBudget(runtime, share=link.share), cost(response)
        if not held.hold(size):
            link.too_slow(self.peer, "answers wait for it, and the bus keeps too much already (Limits.total_bytes)")
            return
        self._count(-1)  # the handler is over, and its place among all is another's: many peers may stop reading
        runtime.answering += 1
        try:
            if runtime.backlogged:
                self._next_call()
            await link.room_for_answer()
        finally:
            self._count(1)
            runtime.answering -= 1
            held.release(size)
        if not call.ended:
            link.answer(response, self.peer)

    def refuse(self, call: Call, code: Code, text: str, reason: str | None, detail: Any) -> None:
        kind = call.message.kind
        if kind is Kind.REQUEST:
            send_error(self.peer, call.message, code, text, reason, detail, delivered=call.delivered)
        elif kind is Kind.OPEN:
            send_error(self.peer, call.message, code, text, reason, detail, Kind.END, delivered=call.delivered)
            self.peer.streams.forget(call.message.id)

    def finished(self, call: Call) -> None:
        calls = self.calls
        if calls.get(call.message.id) is call:
            del calls[call.message.id]
            if call.of_channel:
                self.channel_calls -= 1
        if not call.started and self.waiting and call in self.waiting:
            self.waiting.remove(call)
            self.budget.release(cost(call.message))
        elif call.places is not None and not call.started and call.places.drop(call):
            self.held -= 1
            self.budget.release(cost(call.message))
        else:
            self.free_place(call)

    def stopped(self, call: Call) -> None:
        if self.calls.get(call.message.id) is call:
            del self.calls[call.message.id]
            self.channel_calls -= call.of_channel
        self.stopping += 1
        self.link.runtime.stopping += 1
        self.link.runtime.notifier.signal()

    def returned(self, call: Call) -> None:
        self.stopping -= 1
        self.link.runtime.stopping -= 1
        self.free_place(call)

    def lost(self) -> None:
        """End all calls, also those that wait: the connection is gone."""
        waiting, self.waiting = self.waiting, None
        for call in waiting or ():
            self.budget.release(cost(call.message))
            call.ended = True  # never started, so no place is to be given back
            call.discard()
        self.link.runtime.backlogged.pop(self, None)
        self.link.stalled.pop(self, None)
        if self.held:  # first, so that none of them begins when others give their places back
            for call in [call for call in self.calls.values() if call.places is not None and call.places.waits(call)]:
                call.stop()
        for call in list(self.calls.values()):
            call.stop()
        self.calls.clear()
        self.channel_calls = 0

    # -- the limit of those that run at once: nothing here waits ----------------------------------------------------------

    def _admit(self, call: Call) -> None:
        """Start a call, or let it wait for a place, or refuse it."""
        link = self.link
        runtime = link.runtime
        waiting, total = self.waiting, runtime.limits.total_running
        taken = len(self.calls) - self.held + self.stopping - 1
        most = runtime.limits.running if link.most_running is None else link.most_running
        if (
            not waiting
            and taken < most
            and ((16 * runtime.running <= total and 2 * taken < total) or _has_place(runtime, link, taken))  # as that begins
            and (link.outbox is None or self.may_begin())
            and (not call.sizes_known or not call.handler.answers.weight or self.reserve_answer(call))
        ):
            if call.places is not None and not call.places.take(call):
                self._hold(call, call.places)
                return
            raw = call.message.raw
            if raw is not None and len(raw) > LARGE and not self.charge_body(call):
                self._turn_away(call, _no_room(runtime, link.share, call.message))
                return
            runtime.running += 1
            if (share := link.share) is not None:
                share.address.running += 1
            runtime.workers.submit(call)
            return
        if waiting is None:
            waiting = self._begin_queue()
        if len(waiting) + self.held >= self._most_waiting or not self.budget.hold(cost(call.message)):
            self._turn_away(call, self._why_full(call))
            return
        call.message.forget_value()
        if isinstance(waiting, PriorityQueue):
            assert link.urgency is not None
            waiting.append(call, link.urgency(call.message))
        else:
            waiting.append(call)
        runtime.backlogged[self] = None

    @property
    def _most_waiting(self) -> int:
        link = self.link
        return link.runtime.limits.waiting if link.most_waiting is None else link.most_waiting

    def _hold(self, call: Call, places: Places) -> None:
        """Let a call wait for a place of its handler, or refuse it at once: in a cluster it is then asked elsewhere."""
        if self.expected:
            self.expected.pop(call, None)
        if self.held + len(self.waiting or ()) >= self._most_waiting or not self.budget.hold(cost(call.message)):
            self._turn_away(call, self._why_full(call))
            return
        call.message.forget_value()
        self.held += 1
        places.wait(call, 0 if self.link.urgency is None else self.link.urgency(call.message))

    def proceed(self, call: Call) -> None:
        self.held -= 1
        waiting = self.waiting
        if waiting is None:
            waiting = self._begin_queue()
        if isinstance(waiting, PriorityQueue):
            waiting.appendleft(call, _FIRST - 1)
        else:
            waiting.appendleft(call)
        self._next_call()

    def _begin_queue(self) -> deque[Call] | PriorityQueue[Call]:
        waiting = self.waiting = deque() if self.link.urgency is None else PriorityQueue()
        return waiting

    def _why_full(self, call: Call) -> str:
        """Reason why a request can neither begin nor wait: the limits that were reached, and figures of this peer alone."""
        runtime, budget, message = self.link.runtime, self.budget, call.message
        limits = runtime.limits
        waiting = len(self.waiting or ()) + self.held
        if self.link.most_waiting is not None and waiting >= self.link.most_waiting:
            why = f"{waiting} requests of the cluster wait (Cluster.waiting)"
        elif waiting >= limits.waiting:
            why = f"{waiting} of your requests wait (Limits.waiting)"
        elif budget.held and budget.held + cost(message) > limits.waiting_bytes:
            why = f"{budget.held} bytes of yours wait (Limits.waiting_bytes)"
        else:
            return _no_room(runtime, self.link.share, message)
        running = len(self.calls) - waiting - 1 + self.stopping
        places = call.places
        if places is not None and places.full and _has_place(runtime, self.link, running):
            return f"{why} behind {places.most} that the handler of {call.message.subject!r} has at once (running=)"
        if running >= limits.running:
            return f"{why} behind {running} that run (Limits.running)"
        if not self.may_begin():
            return f"{why} until you read your answers (Limits.outbox_bytes)"
        if _has_place(runtime, self.link, running):
            return f"{why} behind {running} that run, whose answers may be more than can wait for you (Limits.outbox_bytes)"
        return f"{why} behind {running} that run, as others have their share of the places (Limits.total_running)"

    def _turn_away(self, call: Call, why: str) -> None:
        if self.calls.pop(call.message.id, None) is not None:
            self.channel_calls -= call.of_channel
        if self.expected:
            self.expected.pop(call, None)
        call.ended = True
        if call.places is not None:
            call.places.leave(call)
        self.link.services.counters.refused += 1
        text = f"{why}: ask again when earlier ones have been answered"
        call.origin.refuse(call, Code.RESOURCE_EXHAUSTED, text, "too_many_requests", None)

    def _next_call(self) -> None:
        """Give a free place away: it goes round among the peers that have requests waiting.

        Each step starts a request; or takes a peer out that must wait for a place of its own, and comes back with that; or
        passes by one that has none, because others of its address have too many.
        """
        runtime = self.link.runtime
        backlogged = runtime.backlogged
        if self.waiting:
            backlogged.setdefault(self)
        passed_by = 0
        while backlogged and runtime.running < runtime.limits.total_running and passed_by < _PASSED_BY:
            first: InboundCalls = next(iter(backlogged))
            del backlogged[first]
            waiting, share = first.waiting, first.link.share
            if not waiting:
                continue
            taken = len(first.calls) - len(waiting) - first.held + first.stopping
            if not _has_place(runtime, first.link, taken):
                if not taken:
                    backlogged[first] = None
                    passed_by += 1
                continue
            if first.link.outbox is not None and not first.may_begin():
                continue
            call = waiting.popleft()
            if call.sizes_known and call.handler.answers.weight and not first.reserve_answer(call):
                if isinstance(waiting, PriorityQueue):
                    waiting.appendleft(call, _FIRST if call.put_off else _FIRST - 1)
                else:
                    waiting.appendleft(call)
                continue
            if call.places is not None and not call.places.take(call):  # what it is charged, it stays
                first.held += 1
                if first.expected:
                    first.expected.pop(call, None)
                urgency = first.link.urgency
                call.places.wait(call, 0 if urgency is None else urgency(call.message), first=call.put_off)
                if waiting:
                    backlogged[first] = None
                continue
            size = cost(call.message)
            first.budget.release(size)
            if size > LARGE:
                _ = first.charge_body(call, surely=True)  # it was kept until now
            call.put_off = False
            runtime.running += 1
            if share is not None:
                share.address.running += 1
            runtime.workers.submit(call)
            if waiting:
                backlogged[first] = None

    def put_off(self, call: Call) -> bool:
        """Let a call wait again that has a place and has not begun, where its peer has stopped reading. True if it waits."""
        if self.may_begin():
            return False
        self.budget.charge(cost(call.message))
        call.message.forget_value()
        call.put_off = True
        waiting = self.waiting
        if waiting is None:
            waiting = self._begin_queue()
        if isinstance(waiting, PriorityQueue):
            waiting.append(call, _FIRST)
        else:  # before those that had no place yet, and behind those that came before it
            waiting.insert(sum(1 for _ in takewhile(lambda other: other.put_off, waiting)), call)
        self.free_place(call)  # for another
        return True

    # -- places and memory -----------------------------------------------------------------------------------------------

    def resume(self) -> None:
        """Let requests begin that had to wait, where it is their turn."""
        if self.waiting:
            self._next_call()

    def may_begin(self) -> bool:
        """Tell whether requests may begin. If not, they do as soon as the connection takes answers again."""
        link = self.link
        if link.takes_answers:
            return True
        link.stalled[self] = None
        return False

    def reserve_answer(self, call: Call) -> bool:
        """Set aside for the answer that a call is expected to have. False where the peer has too much to read already.

        It is not charged: it may be much less in the end.
        """
        link = self.link
        if call.message.kind is not Kind.REQUEST or link.inner:  # the engine reads what all nodes are answered
            return True
        runtime = link.runtime
        now, most = runtime.time(), 2 * runtime.limits.outbox_bytes
        size, until = call.handler.answers.expect(most, now)
        if not size:
            return True
        expected = self.expected = self.expected if self.expected is not None else {}
        unread = link.unread
        held = unread + sum(expected.values())
        if held and held + size > most:
            left, may_wait = self._look(expected, most, now, guess=call.handler.answers.weight < 0)
            if unread + left and unread + left + size > most:
                link.stalled[self] = None
                if may_wait and unread + size <= most:
                    until = min(until, self.looked + _LOOK)
                self.peer.watch(until)
                return False
        expected[call] = size
        return True

    def _look(self, expected: dict[Call, int], most: int, now: float, *, guess: bool) -> tuple[int, bool]:
        """Look at the calls for which something is set aside. One that waits needs nothing where nobody knows what is right.

        Args:
            guess: The size of the next answer is a guess itself. Then no call that waits is counted.

        Returns:
            Bytes set aside but for calls that wait, and whether this may be less after another look.
        """
        again = now >= self.looked + _LOOK
        if again:
            self.looked = now
        left, may_wait = 0, False
        for call in expected:
            answers = call.handler.answers
            size = expected[call] = answers.expect(most, now)[0]
            if again and call.scope is not None:
                call.waited += 1
                call.looks += 1
            if not guess and answers.weight >= 0:
                left += size
            elif call.waited < _WAITS and call.looks < _POLLS:
                left += size
                may_wait = True
        return left, may_wait

    def charge_body(self, call: Call, *, surely: bool = False) -> bool:
        """Charge a large body that a handler keeps. False if the bus keeps too much already."""
        size, bodies = cost(call.message), self.link.bodies
        if surely:
            bodies.charge(size)
        elif not bodies.hold(size):
            return False
        large = self.large = self.large if self.large is not None else {}
        large[call] = size
        return True

    def _count(self, places: int) -> None:
        self.link.runtime.running += places
        if (share := self.link.share) is not None:
            share.address.running += places

    def free_place(self, call: Call) -> None:
        """Give the place of a call back, and start the next."""
        link, runtime = self.link, self.link.runtime
        runtime.running -= 1
        if (share := link.share) is not None:
            share.address.running -= 1
        if call.places is not None:
            call.places.leave(call)
        if self.expected:
            self.expected.pop(call, None)
        if self.large and (size := self.large.pop(call, 0)):
            link.bodies.release(size)
        if self.waiting or runtime.backlogged:
            self._next_call()
        if runtime.notifier.waiting:
            runtime.notifier.signal()


def _has_place(runtime: Runtime, link: Link, taken: int) -> bool:
    """Tell whether a peer that has taken so many places may have one more.

    As of `total_bytes`, it may have the fewer the fewer are free, and so may all peers of its address together. One that has
    none may have the last but those which are left for addresses that have none. Where one may have as many as there are, there
    are no shares.
    """
    limits, share = runtime.limits, link.share
    total, running = limits.total_running, runtime.running
    if taken >= (limits.running if link.most_running is None else link.most_running):
        return False
    if 16 * running <= total and 2 * taken < total:  # no share is as small as that
        return True
    free = total - running
    if free <= 0:
        return False
    if limits.running >= total:
        return True
    if taken * total >= free * free:
        return False
    if share is None:
        return True
    # The fourth power, not the square: what an address may have at first is about the same, and more addresses find a place.
    others = share.address.running
    return not others or others * total**3 < 16 * free**4 or (not taken and 4 * free > total)


def _no_room(runtime: Runtime, share: Share | None, message: Message) -> str:
    total = runtime.limits.total_bytes
    why = f"no room for a request of {len(message.raw or b'')} bytes"
    if share is None or runtime.buffered + cost(message) > total:
        return f"{why}: {runtime.buffered} of {total} bytes wait here (Limits.total_bytes)"
    return (
        f"{why}: {share.held} bytes of yours are kept here already, and the share of your connection, or of all from its "
        "network address, is no larger (Limits.total_bytes)"
    )
