"""Subscriptions to what a store keeps, over real NATS servers: the tests of the engine in memory."""

import pytest

from tests.integration.interop.test_durable import engine
from tests.unit.cluster.test_stored_subscriptions import (
    name,
    test_a_drain_ends_the_iteration_after_what_has_come,
    test_a_pause_of_its_own_holds,
    test_a_replay_reads_what_is_stored_in_its_order_and_then_what_comes,
    test_large_publications_wait_in_the_store,
    test_one_comes_after_the_other_is_settled_and_several_where_the_queue_is_larger,
    test_readers_of_one_name_share_and_a_handler_is_one_of_them,
    test_what_does_not_fit_is_a_dead_letter_at_once,
    test_what_is_rejected_is_a_dead_letter_with_its_reason,
    test_what_is_stored_is_read_and_what_is_acknowledged_does_not_come_again,
    test_what_is_to_be_tried_again_comes_again_until_its_last_attempt,
    test_what_was_read_and_not_settled_when_the_block_is_left_comes_again_at_once,
    test_without_a_cluster_or_a_store_it_is_one_clear_error,
)

pytestmark = pytest.mark.anyio

__all__ = [
    "engine",
    "name",
    "test_a_drain_ends_the_iteration_after_what_has_come",
    "test_a_pause_of_its_own_holds",
    "test_a_replay_reads_what_is_stored_in_its_order_and_then_what_comes",
    "test_large_publications_wait_in_the_store",
    "test_one_comes_after_the_other_is_settled_and_several_where_the_queue_is_larger",
    "test_readers_of_one_name_share_and_a_handler_is_one_of_them",
    "test_what_does_not_fit_is_a_dead_letter_at_once",
    "test_what_is_rejected_is_a_dead_letter_with_its_reason",
    "test_what_is_stored_is_read_and_what_is_acknowledged_does_not_come_again",
    "test_what_is_to_be_tried_again_comes_again_until_its_last_attempt",
    "test_what_was_read_and_not_settled_when_the_block_is_left_comes_again_at_once",
    "test_without_a_cluster_or_a_store_it_is_one_clear_error",
]
