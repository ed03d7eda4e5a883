"""Deliberate bugs in polybus, to see whether the world finds them, and how soon.

``python -m tests.simulation --mutants --seeds 200`` prints how many of the seeds find each.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest

from polybus._core.bus.forwarding import ForwardingRoute
from polybus._core.peer.peer_core import PeerCore
from polybus._core.peer.remote_subscriptions import RemoteSubscriptions
from polybus._core.runtime.loop_prevention import Deduplicator, ViaHeader
from polybus.errors import BusError, Unavailable
from polybus.message import Kind, Message

from .world import disturbed

__all__ = ["MUTANTS", "is_found"]


def answers_that_go_to_another_request_after_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one that waits gets the answer."""
    lost, connection_lost, receive = set[PeerCore](), PeerCore.connection_lost, PeerCore.receive

    def remembering(self: PeerCore, reason: str, *, going_on: bool, error: BusError | None = None) -> None:
        lost.add(self)
        connection_lost(self, reason, going_on=going_on, error=error)

    def confused(self: PeerCore, message: Message, now: float) -> None:
        if message.kind is Kind.RESPONSE and self in lost and self.pending:
            message.id = next(iter(self.pending))
        receive(self, message, now)

    monkeypatch.setattr(PeerCore, "connection_lost", remembering)
    monkeypatch.setattr(PeerCore, "receive", confused)


def requests_that_outlive_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait on when the link has come back."""
    cut_off = PeerCore.cut_off

    def forgetful(self: PeerCore, reason: str, error: BusError | None) -> None:
        if not self.link.opened:
            cut_off(self, reason, error)

    monkeypatch.setattr(PeerCore, "cut_off", forgetful)


def a_bridge_that_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt may have come through, only its answer not."""
    forward = ForwardingRoute.forward

    async def twice(self: ForwardingRoute, message: Any, deadline: float) -> Any:
        try:
            return await forward(self, message, deadline)
        except Unavailable:
            return await forward(self, message, deadline)

    monkeypatch.setattr(ForwardingRoute, "forward", twice)


def an_account_that_a_cut_leaves_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a peer's subscriptions cost is not given back with them."""

    clear = RemoteSubscriptions.clear

    def forgetful(self: RemoteSubscriptions) -> None:
        budget = self._peer.budget
        held = budget.held
        clear(self)
        budget.charge(held - budget.held)

    monkeypatch.setattr(RemoteSubscriptions, "clear", forgetful)


def a_publication_that_is_taken_on_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two links or bridges bring it, and nobody notices."""

    def gullible(self: Deduplicator, via: ViaHeader, *_: object, **__: object) -> bool:
        return not self.is_own(via)

    monkeypatch.setattr(Deduplicator, "is_news", gullible)


def a_deadline_that_is_not_disarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer is looked at for ever, though it has no request any more."""
    expire = PeerCore.expire

    def restless(self: PeerCore, now: float) -> float:
        return min(expire(self, now), now + 60)

    monkeypatch.setattr(PeerCore, "expire", restless)


MUTANTS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    answers_that_go_to_another_request_after_a_reconnect: "the answer of",
    requests_that_outlive_their_connection: "has not ended",
    a_bridge_that_tries_again: "ran more than once",
    an_account_that_a_cut_leaves_charged: "keeps .* bytes",
    a_publication_that_is_taken_on_each_way: "got publications twice|on .* after",
    a_deadline_that_is_not_disarmed: "watches deadlines of",
}
"""And what the world says of each."""


def is_found(mutant: Callable[[pytest.MonkeyPatch], None], seed: int) -> bool:
    """Live in the world with a bug; True where its check failed.

    Raises:
        AssertionError: Another check failed.
        TimeoutError: The world did not heal.
    """
    with pytest.MonkeyPatch.context() as monkeypatch:
        mutant(monkeypatch)
        try:
            disturbed([seed])()
        except (AssertionError, TimeoutError) as error:
            if not re.search(MUTANTS[mutant], str(error)):
                raise
            assert "POLYBUS_SEED=" in error.__notes__[-1]
            return True
    return False
