"""Handles a peer's requests and notifications, from arrival to answer."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any, Final

from attrs import define, field
from msgspec import Struct

from ..._util.deadlines import Deadlines
from ..._util.logs import log_fields
from ..._util.priority_queue import PriorityQueue
from ...errors import Code
from ...headers import VIA
from ...message import Kind, Message
from ...subjects import RESERVED_PREFIX
from ..rpc.call import Call, refused_call
from ..runtime.loop_prevention import ViaHeader
from ..runtime.memory_budgets import LARGE, MemoryBudget, cost, trim
from . import authorization_queue
from .responses import refuse_duplicate, response_to, send_error

if TYPE_CHECKING:
    from ..link.link import Link
    from ..runtime.memory_budgets import Share
    from ..runtime.runtime import Runtime
    from ..runtime.workers import Places
    from .peer_core import PeerCore

logger: logging.Logger = logging.getLogger("polybus")

DRAINING = "this bus takes no requests now, it is draining or has not started yet: ask another, or later"

_REQUEST: Final = Kind.REQUEST
_OTHERS: Final = frozenset({"stream", "channel", "route"})
"""Handler styles that a plain `Call` cannot run."""
_FIRST = 1_000
"""Priority of calls that have already had a slot. Like the priority below it, it is higher than all priorities of protocols."""

_PASSED_BY: Final = 32
"""Maximum number of peers to skip when a slot becomes free. For the next slot, the search continues after these peers."""

_LOOK: Final = 0.01
"""Minimum number of seconds between two checks of calls with an unknown answer size."""
_WAITS: Final = 4
"""Number of consecutive checks that must find a call waiting before it counts as idle.

Unlike a time, this works on a busy machine too, because the call could run between two checks.
"""
_POLLS: Final = 16
"""Total number of checks after which a waiting call counts as idle, even if it runs in between to poll for something."""


class CallMemory(Struct, eq=False):
    """Tracks the memory for a peer's running requests: large bodies and expected answers."""

    _peer: PeerCore
    bodies: dict[Call, int] = {}
    """Sizes of large bodies in bytes."""
    answers: dict[Call, int] = {}
    """Bytes reserved for large answers."""
    _looked: float = -math.inf
    """Time of the last check."""

    def charge_body(self, call: Call, *, surely: bool = False) -> bool:
        """Charge a large body that a handler keeps. Returns False if there is not enough memory, unless `surely` is set."""
        size, bodies = cost(call.message), self._peer.link.bodies
        if surely:
            bodies.charge(size)
        elif not bodies.hold(size):
            return False
        self.bodies[call] = size
        return True

    def reserve_answer(self, call: Call) -> bool:
        """Reserve memory for a call's expected answer, without charging it. Returns False if the peer has too much to read."""
        link = self._peer.link
        if call.message.kind is not Kind.REQUEST or link.inner:  # the engine reads the answers to all nodes
            return True
        runtime = link.runtime
        now, most = runtime.time(), 2 * runtime.limits.outbox_bytes
        size, until = call.handler.answers.expect(most, now)
        if not size:
            return True
        unread = link.unread
        held = unread + sum(self.answers.values())
        if held and held + size > most:
            left, may_wait = self._look(most, now, guess=call.handler.answers.weight < 0)
            if unread + left and unread + left + size > most:
                link.stalled[self._peer.inbound.resume] = None
                if may_wait and unread + size <= most:
                    until = min(until, self._looked + _LOOK)
                self._peer.watch(until)
                return False
        self.answers[call] = size
        return True

    def _look(self, most: int, now: float, *, guess: bool) -> tuple[int, bool]:
        """Check the calls with a reservation. Returns the bytes to reserve, and True if a later check may find fewer.

        A waiting call doesn't need a reservation while the size of its answer is unknown. `guess` is True if the size of the
        next answer is unknown too.
        """
        again = now >= self._looked + _LOOK
        if again:
            self._looked = now
        left, may_wait = 0, False
        for call in self.answers:
            answers = call.handler.answers
            size = self.answers[call] = answers.expect(most, now)[0]
            if again and call.scope is not None:
                call.waited += 1
                call.looks += 1
            if not guess and answers.weight >= 0:
                left += size
            elif call.waited < _WAITS and call.looks < _POLLS:
                left += size
                may_wait = True
        return left, may_wait

    def release_answer(self, call: Call) -> None:
        self.answers.pop(call, None)

    def release(self, call: Call) -> None:
        self.release_answer(call)
        if size := self.bodies.pop(call, 0):
            self._peer.link.bodies.release(size)


@define(eq=False, repr=False, weakref_slot=False)
class InboundCalls:
    """A peer's running and waiting requests. Implements `ResponseSink`."""

    peer: PeerCore
    link: Link = field(init=False)
    budget: MemoryBudget = field(init=False)
    """Memory budget of the peer, which is charged for waiting requests."""
    calls: dict[Any, Call] = field(factory=dict, init=False)
    channel_calls: int = field(default=0, init=False)
    """Number of streams and channels in `calls`."""
    _deadlines: Deadlines = field(factory=Deadlines, init=False)
    _few: int = field(init=False)
    """Number of requests that the peer may run without a quota check, while at most `Runtime.few` calls run in total."""
    waiting: PriorityQueue[Call] | None = field(default=None, init=False)
    """Requests that are waiting for a slot, in order or by priority. None if there are no such requests."""
    held: int = field(default=0, init=False)
    """Number of requests that are waiting for a slot of their handler. They don't use a slot of this peer."""
    _memory: CallMemory | None = field(default=None, init=False)
    """Memory for large bodies and answers, created for the first request that has one."""
    stopping: int = field(default=0, init=False)
    """Number of handlers that are still running, and use a slot, although their requests have ended."""

    def __attrs_post_init__(self) -> None:
        self.link, self.budget = self.peer.link, self.peer.budget
        self._few = min(_most_running(self.link), (self.link.runtime.limits.total_running + 1) // 2)

    # -- arrivals --------------------------------------------------------------------------------------------------------

    def request(self, message: Message, now: float) -> None:
        link, peer = self.link, self.peer
        lookup, services = peer.host.lookup, link.services
        if message.id in self.calls:
            refuse_duplicate(peer, message, now)
            return
        ttl = message.ttl
        if ttl is not None and ttl <= 0:
            services.counters.refused += 1
            send_error(peer, message, Code.DEADLINE_EXCEEDED, "the deadline had already passed when the request arrived")
            return
        handler = lookup.handlers.get(message.subject) or lookup.find_for(message)
        deadline = math.inf if ttl is None else now + ttl
        call: Call
        if handler is None or not services.takes_requests or handler.style in _OTHERS:
            unhandled = self._unhandled(message, handler, deadline)
            if unhandled is None:
                return
            call = unhandled
        else:
            if message.headers is not None and VIA in message.headers:
                ViaHeader.strip(message)
            call = Call(services, self, peer, handler, message, deadline, handler.places)
        self.start(call)

    def _unhandled(self, message: Message, handler: Any, deadline: float) -> Call | None:
        """Reject a request without a suitable handler, or return a call that asks `authorize` first or forwards the request."""
        peer, subject = self.peer, message.subject
        services = self.link.services
        if isinstance(subject, str) and subject.startswith(RESERVED_PREFIX):
            authorization_queue.hello(peer, message)
            return None
        if not services.takes_requests:
            services.counters.refused += 1
            send_error(peer, message, Code.UNAVAILABLE, DRAINING)
            return None
        if handler is not None and handler.style == "route":
            passing: Call = handler.call(peer, message, deadline)
            return passing
        if handler is None:
            problem = Code.UNIMPLEMENTED, f"no handler for {subject!r} here"
            self._hint(subject)
        else:
            problem = Code.INVALID_ARGUMENT, f"{subject!r} is a {handler.style}: use bus.{handler.style}()"
        if services.authorize is not None:
            return refused_call(self, peer, message, deadline, *problem)
        services.counters.refused += 1
        send_error(peer, message, *problem)
        return None

    def _hint(self, subject: str | int) -> None:
        """Log a similar subject, with a rate limit. The caller does not learn it, because the caller may not be authorized."""
        template = "%s requests %.200r, which has no handler: %s"
        if self.link.runtime.warnings.allows(template) and (meant := self.peer.host.lookup.meant(subject)):
            logger.info(template, self.peer, subject, meant, extra=log_fields(self.peer, subject=subject))

    def notify(self, message: Message) -> None:
        link, peer = self.link, self.peer
        lookup, services = peer.host.lookup, link.services
        handler = lookup.find_for(message)
        if handler is None or handler.style == "route":
            session = link.session
            # Protocols with announced handlers send both forms, and this message has already arrived as a publication.
            published = session is not None and session.capabilities.handlers
            if not services.takes_requests:
                handler = None
            elif published and peer.host.pubsub.receiver.takes(message):
                return
            elif published and lookup.route_for(message, "publish") is not None:  # already passed on by a bridge
                handler = None
        if handler is None or not services.takes_requests or handler.style in ("stream", "channel"):
            # As with publications that have no subscribers, this is not a violation.
            why = "no handler" if handler is None else f"a {handler.style} handler" if services.takes_requests else "draining"
            services.counters.refused += handler is not None
            code = Code.UNAVAILABLE if not services.takes_requests else Code.UNIMPLEMENTED
            services.dead_letter(peer.public, message, code, why)
            return
        deadline = math.inf if message.expires is None else message.expires
        call: Call
        if handler.style == "route":
            call = handler.call(peer, message, deadline)
        else:
            if message.headers is not None and VIA in message.headers:
                ViaHeader.strip(message)
            call = Call(services, self, peer, handler, message, deadline, handler.places)
        message.id = call  # a unique value, which is never sent
        self.start(call)

    def expire(self, now: float) -> float:
        """Reject overdue calls, and return the next deadline."""
        for call in self._deadlines.due(now, self.calls):
            call.expire()
        return self._deadlines.next

    def cancel(self, message: Message) -> None:
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
            tell = link.tell
            if tell is not None and link.flowing and message.answer_headers is None and not call.forwards:
                raw = None if value is None else link.format.encode(value)
                answers = call.handler.answers
                if answers.weight or (raw is not None and len(raw) > LARGE):
                    answers.learn(len(raw or b""), link.runtime.time())
                frame = tell(message.id, raw)
                link.services.counters.sent += 1
                if len(self.calls) == 1 and link.send_alone is not None:
                    link.send_alone(frame)
                else:
                    link.transport.send(frame)  # type: ignore[union-attr]  # a flowing link has one
                return
            link.answer(response_to(message, value, link, call), self.peer, alone=len(self.calls) == 1)

    async def answer_later(self, call: Call, value: Any) -> None:
        """Send an answer once the peer has read earlier ones. Until then, the answer is charged and uses a slot of the peer."""
        if call.ended or call.message.kind is not Kind.REQUEST:
            return
        link, runtime = self.link, self.link.runtime
        response = response_to(call.message, value, link, call)
        value = None  # don't keep the value in addition to its encoded form
        trim(response)
        if call.places is not None:
            call.places.leave(call)
        held, size = MemoryBudget(runtime, share=link.share), cost(response)
        if not held.hold(size):
            link.too_slow(self.peer, "answers wait for it, and the bus keeps too much already (Limits.total_bytes)")
            return
        self._count(-1)  # free the bus-wide slot, because many peers may stop reading
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
        if call.started:
            self.free_place(call)
        elif self.waiting is not None and self.waiting.remove(call):
            if not self.waiting.count:
                self.waiting = None
            self.budget.release(cost(call.message))
        elif call.places is not None and call.places.drop(call):
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
        waiting, self.waiting = self.waiting, None
        for call in waiting or ():
            self.budget.release(cost(call.message))
            call.ended = True  # has no slot to return
            call.discard()
        self.link.runtime.backlogged.pop(self, None)
        self.link.stalled.pop(self.resume, None)
        if self.held:  # stop these first, so that they don't start when others return their slots
            for call in [call for call in self.calls.values() if call.places is not None and call.places.waits(call)]:
                call.stop()
        for call in list(self.calls.values()):
            call.stop()
        self.calls.clear()
        self.channel_calls = 0

    # -- concurrency limits: nothing here waits --------------------------------------------------------------------------

    def start(self, call: Call) -> None:
        """Start, queue or reject a call."""
        self.calls[call.message.id] = call
        self.channel_calls += call.of_channel
        if call.deadline < self._deadlines.until:
            self._deadlines.add(call.deadline, call.message.id)
            self.peer.watch(call.deadline)
        link = self.link
        runtime = link.runtime
        taken = len(self.calls) - self.held + self.stopping - 1
        if not (
            self.waiting is None
            and ((taken < self._few and runtime.running <= runtime.few) or _has_place(runtime, link, taken))
            and (link.outbox is None or self.may_begin())
            and (not call.answers_once or not call.handler.answers.weight or self.memory.reserve_answer(call))
        ):
            if self._may_wait(call):
                waiting = self._queue if self.waiting is None else self.waiting
                waiting.append(call, 0 if link.urgency is None else link.urgency(call.message))
                runtime.backlogged[self] = None
            return
        if call.places is not None and not call.places.take(call):
            if self._may_wait(call):
                self._hold(call, call.places)
            return
        raw = call.message.raw
        if raw is not None and len(raw) > LARGE and not self.memory.charge_body(call):
            self._turn_away(call, _no_room(runtime, link.share, call.message))
            return
        runtime.running += 1
        if (share := link.share) is not None:
            share.address.running += 1
        runtime.workers.submit(call)

    @property
    def _queue(self) -> PriorityQueue[Call]:
        if self.waiting is None:
            self.waiting = PriorityQueue(ages=self.link.urgency is not None)
        return self.waiting

    def _may_wait(self, call: Call) -> bool:
        """Charge a call that must wait. If there are too many, reject it immediately so that a cluster can try another node."""
        link = self.link
        waiting = self.held if self.waiting is None else self.waiting.count + self.held
        most = link.runtime.limits.waiting if link.most_waiting is None else link.most_waiting
        if waiting < most and self.peer.hold(call.message):
            return True
        self._turn_away(call, self._why_full(call))
        return False

    def _hold(self, call: Call, places: Places) -> None:
        """Queue a call, which has been charged, for a slot of its handler."""
        if self._memory is not None:
            self._memory.release_answer(call)
        self.held += 1
        places.wait(call, 0 if self.link.urgency is None else self.link.urgency(call.message), first=call.put_off)

    def proceed(self, call: Call) -> None:
        self.held -= 1
        self._queue.appendleft(call, _FIRST - 1)
        self._next_call()

    def _why_full(self, call: Call) -> str:
        """Return the reason for rejecting a request: the limit, and numbers that concern only this peer."""
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
        if running >= _most_running(self.link):
            return f"{why} behind {running} that run ({'Limits' if self.link.most_running is None else 'Cluster'}.running)"
        if not self.may_begin():
            return f"{why} until you read your answers (Limits.outbox_bytes)"
        if _has_place(runtime, self.link, running):
            return f"{why} behind {running} that run, whose answers may be more than can wait for you (Limits.outbox_bytes)"
        return f"{why} behind {running} that run, as others have their share of the places (Limits.total_running)"

    def _turn_away(self, call: Call, why: str) -> None:
        if self.calls.pop(call.message.id, None) is not None:
            self.channel_calls -= call.of_channel
        if self._memory is not None:
            self._memory.release_answer(call)
        call.ended = True
        if call.places is not None:
            call.places.leave(call)
        self.link.services.counters.refused += 1
        text = f"{why}: ask again when earlier ones have been answered"
        call.origin.refuse(call, Code.RESOURCE_EXHAUSTED, text, "too_many_requests", None)

    def _next_call(self) -> None:
        """Start queued requests in free slots, taking turns among the peers.

        Each step either starts a request, removes a peer that must free one of its own slots first, or skips a peer because its
        address has used up its quota.
        """
        runtime = self.link.runtime
        backlogged = runtime.backlogged
        if self.waiting is not None:
            backlogged.setdefault(self)
        passed_by = 0
        while backlogged and runtime.running < runtime.limits.total_running and passed_by < _PASSED_BY:
            first: InboundCalls = next(iter(backlogged))
            del backlogged[first]
            waiting = first.waiting
            if waiting is None:
                continue
            taken = len(first.calls) - waiting.count - first.held + first.stopping
            if not _has_place(runtime, first.link, taken):
                if not taken:
                    backlogged[first] = None
                    passed_by += 1
                continue
            if first.link.outbox is not None and not first.may_begin():
                continue
            call = waiting.popleft()
            if not waiting.count:
                first.waiting = None
            if call.answers_once and call.handler.answers.weight and not first.memory.reserve_answer(call):
                first._queue.appendleft(call, _FIRST if call.put_off else _FIRST - 1)
                continue
            if call.places is not None and not call.places.take(call):  # it stays charged
                first._hold(call, call.places)
            else:
                size = cost(call.message)
                first.budget.release(size)
                if size > LARGE:
                    _ = first.memory.charge_body(call, surely=True)  # it was charged in the queue before
                call.put_off = False
                first._count(1)
                runtime.workers.submit(call)
            if first.waiting is not None:
                backlogged[first] = None

    def put_off(self, call: Call) -> bool:
        """Requeue a call that has not started, if its peer stopped reading. Returns True if the call was requeued."""
        if self.may_begin():
            return False
        self.budget.charge(cost(call.message))
        call.message.forget_value()
        call.put_off = True
        self._queue.append(call, _FIRST)
        self.free_place(call)
        return True

    # -- slots -----------------------------------------------------------------------------------------------------------

    @property
    def memory(self) -> CallMemory:
        if self._memory is None:
            self._memory = CallMemory(self.peer)
        return self._memory

    def resume(self) -> None:
        if self.waiting is not None:
            self._next_call()

    def may_begin(self) -> bool:
        link = self.link
        if link.takes_answers:
            return True
        link.stalled[self.resume] = None
        return False

    def _count(self, places: int) -> None:
        self.link.runtime.running += places
        if (share := self.link.share) is not None:
            share.address.running += places

    def free_place(self, call: Call) -> None:
        link = self.link
        runtime = link.runtime
        runtime.running -= 1
        if (share := link.share) is not None:
            share.address.running -= 1
        if call.places is not None:
            call.places.leave(call)
        memory = self._memory
        if memory is not None and (memory.answers or memory.bodies):
            memory.release(call)
        if self.waiting is not None or runtime.backlogged:
            self._next_call()
        if runtime.notifier.waiting:
            runtime.notifier.signal()


def _most_running(link: Link) -> int:
    return link.runtime.limits.running if link.most_running is None else link.most_running


def _has_place(runtime: Runtime, link: Link, taken: int) -> bool:
    """Return True if a peer that uses `taken` slots may use another one.

    As with `total_bytes`, the quotas of a peer and of its address shrink with the number of free slots, and the last slots are
    reserved for addresses that don't use any. There are no quotas if the limits allow a single peer to use all slots.
    """
    limits, share = runtime.limits, link.share
    total = limits.total_running
    if taken >= _most_running(link):
        return False
    free = total - runtime.running
    if free <= 0:
        return False
    if limits.running >= total:
        return True
    if taken * total >= free * free:
        return False
    if share is None:
        return True
    # The fourth power gives an address a similar quota at first but leaves slots for more addresses than the square.
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
