"""Limits of the requests that run at once: a request starts, waits for a place, or is refused. Nothing here waits."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from .._core.answer_sizes import LARGE
from .._core.memory import cost
from .._util.priority_queue import PriorityQueue
from ..errors import Code

if TYPE_CHECKING:
    from .._core.memory import Share
    from .._core.runtime import Runtime
    from .._rpc.call import Call
    from ..message import Message
    from .inbound_calls import InboundCalls

__all__ = ["DRAINING", "admit", "next_call", "put_off"]

DRAINING = "this bus takes no requests now, it is draining or has not started yet: ask another, or later"

_FIRST = 1_000
"""The level of calls that had a place already: above all that a wire has, as is the one below it."""

_PASSED_BY: Final = 32
"""Peers that are looked at in vain when a place becomes free: each place that does so moves on among them."""


def admit(inbound: InboundCalls, call: Call) -> None:
    """Start a call, or let it wait for a place, or refuse it."""
    link = inbound.link
    runtime = link.runtime
    waiting = inbound.waiting
    if (
        not waiting
        and _has_place(runtime, link.share, len(inbound.calls) + inbound.stopping - 1)
        and (link.outbox is None or inbound.may_begin())
        and (not call.weighed or not call.handler.answers.weight or inbound.set_aside(call))
    ):
        raw = call.message.raw
        if raw is not None and len(raw) > LARGE and not inbound.keep(call):
            _turn_away(inbound, call, _no_room(runtime, link.share, call.message))
            return
        runtime.running += 1
        if (share := link.share) is not None:
            share.address.running += 1
        runtime.workers.submit(call)
        return
    if waiting is None:
        waiting = _begin_queue(inbound)
    if len(waiting) >= runtime.limits.waiting or not inbound.account.hold(cost(call.message)):
        _turn_away(inbound, call, _why_full(inbound, call.message))
        return
    call.message.forget_value()
    if isinstance(waiting, PriorityQueue):
        assert link.urgency is not None
        waiting.append(call, link.urgency(call.message))
    else:
        waiting.append(call)
    runtime.backlogged[inbound] = None


def _begin_queue(inbound: InboundCalls) -> deque[Call] | PriorityQueue[Call]:
    waiting = inbound.waiting = deque() if inbound.link.urgency is None else PriorityQueue()
    return waiting


def _has_place(runtime: Runtime, share: Share | None, taken: int) -> bool:
    """Tell whether a peer that has taken so many places may have one more.

    As of `total_bytes`, it may have the fewer the fewer are free, and so may all peers of its address together. One that has
    none may have the last but those which are left for addresses that have none. Where one may have as many as there are, there
    are no shares.
    """
    limits = runtime.limits
    total = limits.total_running
    free = total - runtime.running
    if free <= 0 or taken >= limits.running:
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


def _why_full(inbound: InboundCalls, message: Message) -> str:
    """Reason why a request can neither begin nor wait: the limits that were reached, and figures of this peer alone."""
    runtime, account = inbound.link.runtime, inbound.account
    limits = runtime.limits
    waiting = len(inbound.waiting or ())
    if waiting >= limits.waiting:
        why = f"{waiting} of your requests wait (Limits.waiting)"
    elif account.held and account.held + cost(message) > limits.waiting_bytes:
        why = f"{account.held} bytes of yours wait (Limits.waiting_bytes)"
    else:
        return _no_room(runtime, inbound.link.share, message)
    running = len(inbound.calls) - waiting - 1 + inbound.stopping
    if running >= limits.running:
        return f"{why} behind {running} that run (Limits.running)"
    if not inbound.may_begin():
        return f"{why} until you read your answers (Limits.outbox_bytes)"
    return f"{why} behind {running} that run, as others have their share of the places (Limits.total_running)"


def _no_room(runtime: Runtime, share: Share | None, message: Message) -> str:
    total = runtime.limits.total_bytes
    why = f"no room for a request of {len(message.raw or b'')} bytes"
    if share is None or runtime.buffered + cost(message) > total:
        return f"{why}: {runtime.buffered} of {total} bytes wait here (Limits.total_bytes)"
    return (
        f"{why}: {share.held} bytes of yours are kept here already, and the share of your connection, or of all from its "
        "network address, is no larger (Limits.total_bytes)"
    )


def _turn_away(inbound: InboundCalls, call: Call, why: str) -> None:
    inbound.calls.pop(call.message.id, None)
    if inbound.expected:
        inbound.expected.pop(call, None)
    call.ended = True
    inbound.link.services.counters.refused += 1
    text = f"{why}: ask again when earlier ones have been answered"
    call.origin.refuse(call, Code.RESOURCE_EXHAUSTED, text, "too_many_requests", None)


def next_call(inbound: InboundCalls) -> None:
    """Give a free place away: it goes round among the peers that have requests waiting.

    Each step starts a request; or takes a peer out that must wait for a place of its own, and comes back with that; or passes
    by one that has none, because others of its address have too many.
    """
    runtime = inbound.link.runtime
    backlogged = runtime.backlogged
    if inbound.waiting:
        backlogged.setdefault(inbound)
    passed_by = 0
    while backlogged and runtime.running < runtime.limits.total_running and passed_by < _PASSED_BY:
        first = next(iter(backlogged))
        del backlogged[first]
        waiting, share = first.waiting, first.link.share
        if not waiting:
            continue
        taken = len(first.calls) - len(waiting) + first.stopping
        if not _has_place(runtime, share, taken):
            if not taken:
                backlogged[first] = None
                passed_by += 1
            continue
        if not first.may_begin():
            continue
        call = waiting.popleft()
        if call.weighed and call.handler.answers.weight and not first.set_aside(call):
            if isinstance(waiting, PriorityQueue):
                waiting.appendleft(call, _FIRST if call.put_off else _FIRST - 1)
            else:
                waiting.appendleft(call)
            continue
        size = cost(call.message)
        first.account.release(size)
        if size > LARGE:
            _ = first.keep(call, surely=True)  # it was kept until now
        call.put_off = False
        runtime.running += 1
        if share is not None:
            share.address.running += 1
        runtime.workers.submit(call)
        if waiting:
            backlogged[first] = None


def put_off(inbound: InboundCalls, call: Call) -> bool:
    """Let a call wait again that has a place and has not begun, where its peer has stopped reading. True if it waits."""
    if inbound.may_begin():
        return False
    inbound.account.charge(cost(call.message))
    call.message.forget_value()
    call.put_off = True
    waiting = inbound.waiting
    if waiting is None:
        waiting = _begin_queue(inbound)
    if isinstance(waiting, PriorityQueue):
        waiting.append(call, _FIRST)
    else:  # before those that had no place yet, and behind those that came before it
        waiting.insert(sum(1 for _ in takewhile(lambda other: other.put_off, waiting)), call)
    inbound.place_free(call)  # for another
    return True
