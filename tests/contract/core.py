"""The core of the contract: tests of how frames travel, where the whole would only repeat itself; and what suites share."""

from typing import Any

from attrs import frozen

from polybus import Backoff, Bus, Peer

__all__ = ["BACKOFF", "Seen", "core_of"]

BACKOFF = Backoff(initial=0.001, maximum=0.02)
CORE = frozenset(
    (
        "test_a_body_survives_the_round_trip",
        "test_a_request_error_keeps_class_code_text_reason_and_detail",
        "test_a_deadline_ends_the_request_and_the_handler",
        "test_a_reconnected_link_restores_its_subscriptions",
        "test_a_slow_reader_pauses_the_sender",
        "test_a_client_that_authenticate_rejects_is_unauthorized_or_forbidden",
        "test_a_thousand_requests_in_flight_each_get_their_own_answer",
        "test_publications_of_a_server_reach_a_subscribed_client_in_order",
    )
)


@frozen
class Seen:
    """What a test looks at of a listener: the address for clients, and the bus's peers."""

    url: str
    bus: Bus

    @property
    def peers(self) -> list[Peer]:
        return self.bus.peers


def core_of(suite: type[Any]) -> type[Any]:
    """The same suite with its core alone."""
    others = {name: None for name in dir(suite) if name.startswith("test_") and name not in CORE}
    assert all(hasattr(suite, name) for name in CORE)
    return type("Core", (suite,), others)
