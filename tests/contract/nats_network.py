"""The contract of NATS: the serving bus and its clients are all clients of a network, the engine of the tests or a server.

Some promises for a dialled server cannot hold in a network: the NATS server decides who may connect, and a message does not
reveal its connection.
"""

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
    "test_both_sides_can_send_requests_at_the_same_time": _ASKS_BACK,
    "test_a_nested_request_inherits_the_deadline_of_the_handler": _ASKS_BACK,
    "test_an_error_from_another_peer_is_internal_unless_relayed": _ASKS_BACK,
    "test_a_server_sends_requests_to_a_client_only_explicitly": _ASKS_BACK,
    "test_a_subscription_to_a_client_receives_only_its_publications": _NETWORK,
    "test_a_publication_to_one_peer_reaches_only_that_peer": _NETWORK,
    "test_sessions_are_isolated_without_a_relay": "all programs of a network hear each other",
    "test_messages_that_arrived_are_read_before_the_end_of_the_peer_is_raised": _NETWORK,
    "test_a_relay_forwards_publications_once_to_others_and_not_back": "the network itself is the relay",
    # Who may come in.
    "test_handlers_see_the_identity_that_authenticate_returns": _NETWORK,
    "test_a_client_that_authenticate_rejects_is_unauthorized_or_forbidden": _NETWORK,
    "test_an_exception_in_authenticate_refuses_the_client": _NETWORK,
    "test_peers_of_finds_all_connections_of_one_identity": _NETWORK,
    "test_a_link_ends_when_its_identity_expires": _NETWORK,
    "test_a_draining_server_finishes_running_requests_and_refuses_new_ones": "it leaves its group, for the others",
    # A bus sends a client away, and the client sees that.
    "test_a_subscription_to_the_server_is_restored_after_a_reconnect": _SENT_AWAY,
    "test_a_reconnected_link_restores_its_subscriptions": _SENT_AWAY,
    "test_messages_queued_while_a_link_is_down_are_sent_after_the_reconnect": _SENT_AWAY,
    "test_requests_in_flight_fail_immediately_when_the_peer_disconnects": "NATS does not tell a client when a responder ends",
    "test_leaving_a_bus_ends_its_requests_in_flight": "NATS does not tell a responder when a client ends",
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
