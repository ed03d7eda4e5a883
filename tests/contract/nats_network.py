"""The contract of NATS: the serving bus and its clients are all clients of a network, the engine of the tests or a server.

Some promises for a dialled server cannot hold in a network: the NATS server decides who may connect, and a message does not
reveal its connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, TypeAlias

from polybus import Bus, connect
from polybus.protocols import Nats
from polybus.testing import protocol_suite

from .core import BACKOFF, Seen

Network: TypeAlias = Callable[[], AbstractAsyncContextManager[str]]
"""Gives the URL of a network of its own."""

_NETWORK = "the peer is the network: who else is there, and lets whom in, is the NATS server's affair"
_ASKS_BACK = "the peer is the network: a question to it goes to whoever handles the subject, not to the asker"
_SENT_AWAY = "no program sends another away; tests/unit/protocols/nats cuts connections"
SKIP = {
    # Asks one client, or tells one.
    "test_both_sides_may_ask_at_the_same_time": _ASKS_BACK,
    "test_a_nested_request_inherits_the_deadline_of_the_handler": _ASKS_BACK,
    "test_an_error_received_from_elsewhere_does_not_leak_upward_unless_relayed": _ASKS_BACK,
    "test_a_peer_that_dialled_in_is_asked_only_by_name": _ASKS_BACK,
    "test_of_one_that_dialled_in_only_its_own_publications_come": _NETWORK,
    "test_a_publication_to_one_peer_reaches_only_that_one": _NETWORK,
    "test_sessions_are_isolated_without_a_relay": "all programs of a network hear each other",
    "test_a_client_that_its_server_asks_sends_nothing_twice": _NETWORK,
    "test_what_has_come_is_read_before_the_end_of_the_peer_is_told": _NETWORK,
    "test_who_waits_is_told_of_the_end_of_the_peer": _NETWORK,
    "test_a_relay_passes_publications_on_to_others_once_and_not_back": "the network itself is the relay",
    # Who may come in.
    "test_the_identity_that_authenticate_gives_is_seen_by_handlers": _NETWORK,
    "test_a_stranger_that_authenticate_refuses_is_unauthorized": _NETWORK,
    "test_a_stranger_that_authenticate_forbids_is_forbidden": _NETWORK,
    "test_an_authenticate_that_fails_refuses": _NETWORK,
    "test_peers_of_finds_all_connections_of_one_identity": _NETWORK,
    "test_a_link_ends_when_its_identity_expires": _NETWORK,
    "test_a_draining_server_finishes_what_runs_and_refuses_what_is_new": "it leaves its group, for the others",
    # A bus sends a client away, and the client sees that.
    "test_an_asked_server_is_asked_again_when_the_link_comes_back": _SENT_AWAY,
    "test_a_link_comes_back_and_its_subscriptions_with_it": _SENT_AWAY,
    "test_what_waits_for_a_link_that_is_down_is_sent_when_it_is_back": _SENT_AWAY,
    "test_what_is_in_flight_when_the_peer_goes_away_fails_at_once": "NATS tells an asker nothing of the end of a responder",
    "test_leaving_with_requests_in_flight_ends_them": "NATS tells a responder nothing of the end of an asker",
}


def over_a_network(network: Network, over: str, **adapter: Any) -> type[Any]:
    """The contract with both ends at a network, each a client of it."""

    @asynccontextmanager
    async def serving(self: Any, bus: Bus, **options: Any) -> AsyncIterator[tuple[Any, Any]]:
        async with network() as url:

            def dial(client: Bus | None = None, **more: Any) -> AbstractAsyncContextManager[Bus]:
                return connect(url, bus=client, protocol=Nats(**adapter), backoff=BACKOFF, **more)

            async with dial(bus):
                yield Seen(url, bus), dial

    return type("OverANetwork", (protocol_suite(lambda: Nats(**adapter), skip=SKIP),), {"serving": serving, "over": over})
