"""Whose turn it is: a request starts at once, waits for its turn, or is turned away. Nothing here waits."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, cast

from .account import cost
from .errors import Code
from .foresight import LARGE
from .message import Kind, Message
from .urgency import UrgentQueue

if TYPE_CHECKING:
    from .calls import Call
    from .peer import Peer
    from .runtime import Runtime

__all__ = ["DRAINING", "admit", "duplicate", "next_call", "put_off"]

DRAINING = "this bus takes no requests now, it is draining or has not started yet: ask another, or later"

_FIRST = 1_000
"""The level of those that had a place already: above all that a wire has, as is the one below it."""


def admit(peer: Peer, call: Call) -> None:
    """Start a call, or let it wait for its turn, or refuse it."""
    link = peer._link
    runtime = link.runtime
    limits = runtime.limits
    waiting = peer.waiting
    if (
        not waiting
        and _has_place(runtime, len(peer.calls or ()) + peer.stopping - 1)
        and (link.outbox is None or peer.may_begin())
        and (not call.weighed or not call.handler.answers.weight or peer.set_aside(call))
    ):
        raw = call.message.raw
        if raw is not None and len(raw) > LARGE and not peer.keep(call):
            room = f"{runtime.buffered} of {limits.total_bytes} bytes wait here (Limits.total_bytes)"
            _turn_away(peer, call, f"no room for a request of {len(raw)} bytes: {room}")
            return
        runtime.running += 1
        runtime.workers.submit(call)
        return
    urgency = link.urgency
    if waiting is None:
        waiting = peer.waiting = deque() if urgency is None else UrgentQueue()
    if len(waiting) >= limits.waiting or not peer.hold(call.message):
        _turn_away(peer, call, f"{limits.running} requests run, {len(waiting)} wait (Limits.running, waiting, waiting_bytes)")
        return
    if urgency is None:
        waiting.append(call)
    else:
        cast("UrgentQueue[Call]", waiting).append(call, urgency(call.message))
    runtime.crowded[peer] = None


def _has_place(runtime: Runtime, taken: int) -> bool:
    """Whether a peer that has taken so many places may have one more.

    As of `total_bytes`, it may have fewer the fewer are free. One that has none may have the last. Where one may have as many
    as there are, there are no shares.
    """
    limits = runtime.limits
    free = limits.total_running - runtime.running
    if free <= 0 or taken >= limits.running:
        return False
    return limits.running >= limits.total_running or taken * limits.total_running < free * free


def _turn_away(peer: Peer, call: Call, why: str) -> None:
    if peer.calls is not None:
        peer.calls.pop(call.message.id, None)
    if peer.expected:
        peer.expected.pop(call, None)
    call.ended = True
    peer._link.bus._counters.refused += 1
    call.origin.refuse(call, Code.RESOURCE_EXHAUSTED, f"{why}: try again later", "too_many_requests", None)


def next_call(peer: Peer) -> None:
    """A place became free: it goes round among the peers that have requests waiting.

    Each step starts a request, or takes a peer out that must wait for a place of its own, and will be back with it.
    """
    runtime = peer._link.runtime
    crowded = runtime.crowded
    if peer.waiting:
        crowded.setdefault(peer)
    while crowded and runtime.running < runtime.limits.total_running:
        first = next(iter(crowded))
        del crowded[first]
        waiting = first.waiting
        if not waiting or first.calls is None:
            continue
        if not _has_place(runtime, len(first.calls) - len(waiting) + first.stopping):
            continue
        if not first.may_begin():
            continue
        call = waiting.popleft()
        if call.weighed and call.handler.answers.weight and not first.set_aside(call):
            if isinstance(waiting, UrgentQueue):
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
        runtime.workers.submit(call)
        if waiting:
            crowded[first] = None


def put_off(peer: Peer, call: Call, urgency: object) -> bool:
    """Let a call wait again that has a place and has not begun, where its peer has stopped reading. Whether it does."""
    if peer.calls is None or peer.may_begin():
        return False
    peer.account.charge(cost(call.message))
    call.message.forget_value()
    call.put_off = True
    waiting = peer.waiting
    if waiting is None:
        waiting = peer.waiting = deque() if urgency is None else UrgentQueue()
    if isinstance(waiting, UrgentQueue):
        waiting.append(call, _FIRST)
    else:  # before those that had no place yet, and behind those that came before it
        waiting.insert(sum(1 for _ in takewhile(lambda other: other.put_off, waiting)), call)
    peer.place_free(call)  # for another
    return True


def duplicate(peer: Peer, message: Message, now: float) -> None:
    """An id that is still in flight: what came second is not run."""
    link = peer._link
    link.refused("duplicate_id", f"the id of this {message.kind.value} for {message.subject!r} is still in flight", now)
    if link.session is not None and link.session.capabilities.answers_duplicates:
        kind = Kind.END if message.kind is Kind.OPEN else Kind.ERROR
        peer.send_error(
            message, Code.ALREADY_EXISTS, "this id is still in flight: ids must be unique", "duplicate_id", kind=kind
        )
