"""A world of five buses, three protocols, a broker and a ring of bridges keeps its promises whatever breaks.

`make test` lives in it some hundred times, ``python -m tests.simulation --seeds 10000`` as often as is wanted.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from polybus._bridge.forward_requests import RequestForwarder
from polybus._peer.peer import Peer
from polybus._peer.subscriptions import Subscriptions
from polybus.errors import BusError, Unavailable
from polybus.message import Kind, Message
from tests.loops import FULL

from .world import disturbed

pytestmark = pytest.mark.native

SEEDS = 2_000 if FULL else 200
AT_ONCE = 25
TRIED = 40
"""Seeds of which one at least must find a bug that is put in on purpose; far fewer do."""


@pytest.fixture(autouse=True)
def silence(caplog: pytest.LogCaptureFixture) -> None:
    """A world in which everything breaks has much to tell."""
    caplog.set_level(logging.CRITICAL)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_whatever_breaks_every_request_ends_nothing_comes_twice_or_out_of_order_and_nothing_is_left(first: int) -> None:
    disturbed(range(first, first + AT_ONCE))()


def test_the_world_is_the_same_in_another_process() -> None:
    command = "from tests.simulation.world import disturbed; print(disturbed([5])().trace)"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONHASHSEED": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.split()[-1] == disturbed([5])().trace


# -- bugs that are put in on purpose -------------------------------------------------------------------------------------


def answers_that_go_to_another_request_after_a_reconnect(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one that waits gets the answer."""
    lost, connection_lost, receive = set[Peer](), Peer.connection_lost, Peer.receive

    def remembering(self: Peer, reason: str, *, going_on: bool, error: BusError | None = None) -> None:
        lost.add(self)
        connection_lost(self, reason, going_on=going_on, error=error)

    def confused(self: Peer, message: Message, now: float) -> None:
        if message.kind is Kind.RESPONSE and self in lost and self.pending:
            message.id = next(iter(self.pending))
        receive(self, message, now)

    monkeypatch.setattr(Peer, "connection_lost", remembering)
    monkeypatch.setattr(Peer, "receive", confused)


def requests_that_outlive_their_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """They wait on when the link has come back."""
    cut_off = Peer.cut_off

    def forgetful(self: Peer, reason: str, error: BusError | None) -> None:
        if not self.link.opened:
            cut_off(self, reason, error)

    monkeypatch.setattr(Peer, "cut_off", forgetful)


def a_bridge_that_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first attempt may have come through, only its answer not."""
    ask = RequestForwarder.ask

    async def twice(self: RequestForwarder, message: Any, deadline: float) -> Any:
        try:
            return await ask(self, message, deadline)
        except Unavailable:
            return await ask(self, message, deadline)

    monkeypatch.setattr(RequestForwarder, "ask", twice)


def an_account_that_a_cut_leaves_charged(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a peer's subscriptions cost is not given back with them."""

    clear = Subscriptions.clear

    def forgetful(self: Subscriptions) -> None:
        budget = self._peer.budget
        held = budget.held
        clear(self)
        budget.charge(held - budget.held)

    monkeypatch.setattr(Subscriptions, "clear", forgetful)


BUGS: dict[Callable[[pytest.MonkeyPatch], None], str] = {
    answers_that_go_to_another_request_after_a_reconnect: "the answer of",
    requests_that_outlive_their_connection: "has not ended",
    a_bridge_that_tries_again: "ran more than once",
    an_account_that_a_cut_leaves_charged: "keeps .* bytes",
}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_bug_that_is_put_in_on_purpose_is_found(
    bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug(monkeypatch)
    with pytest.raises((AssertionError, TimeoutError), match=BUGS[bug]) as raised:
        disturbed(range(TRIED))()
    assert "POLYBUS_SEED=" in raised.value.__notes__[-1]
