"""The tests of stores, durable handlers and subscriptions to what is stored, at real NATS servers.

`tests/unit/cluster` has them all, over the engine in memory. Here are those in which that engine could be wrong: what a server
says, refuses, gives out again and keeps. `test_foreign_streams.py` has those of streams of others.
"""

# ruff: noqa: F401  # the tests are imported to be found here

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.interop.nats_servers import VERSIONS, NatsServer, nats_server
from tests.unit.cluster.test_administration import (
    test_dead_letters_are_listed_tried_again_and_dropped,
    test_letters_that_come_while_they_are_listed_are_for_the_next_time,
    test_stores_are_listed_shown_made_and_removed,
    test_what_a_worker_cannot_read_dies_with_its_body_and_is_kept_whole,
)
from tests.unit.cluster.test_administration import test_names_are_found_however_many_an_engine_gives_at_once as names_are_found
from tests.unit.cluster.test_durable import (
    test_a_consumer_that_was_removed_is_made_again,
    test_a_durable_handler_that_differs_is_named_with_the_argument,
    test_a_publication_that_is_not_known_to_be_stored_ends_at_its_deadline,
    test_a_store_that_differs_is_named_with_the_argument,
    test_a_store_that_is_full_says_so,
    test_a_worker_that_drains_takes_no_attempt_of_what_it_does_not_handle,
    test_each_publication_is_for_one_worker_of_each_durable_handler,
    test_large_publications_come_as_many_at_a_time_as_are_good_for_the_link,
    test_of_two_versions_that_make_a_consumer_at_once_the_later_is_told_that_it_differs,
    test_ordered_is_one_at_a_time_in_the_whole_cluster,
    test_what_a_worker_is_at_when_it_is_closed_comes_to_others_at_once,
    test_what_is_published_twice_under_an_id_is_stored_once_and_the_id_is_for_one_subject,
    test_what_is_too_large_to_be_kept_with_its_story_dies_all_the_same,
    test_what_no_attempt_can_deal_with_is_a_dead_letter,
    test_what_others_made_that_would_lose_data_is_named,
    test_what_stores_and_durable_handlers_cannot_be_is_one_clear_error,
)
from tests.unit.cluster.test_stored_subscriptions import (
    test_a_replay_reads_what_is_stored_in_its_order_and_then_what_comes,
    test_one_comes_after_the_other_is_settled_and_several_where_the_queue_is_larger,
    test_what_is_rejected_is_a_dead_letter_with_its_reason,
    test_what_is_to_be_tried_again_comes_again_until_its_last_attempt,
    test_what_was_read_and_not_settled_when_the_block_is_left_comes_again_at_once,
)


@pytest.mark.parametrize("engine", ["debian"], indirect=True)
async def test_names_are_found_however_many_a_server_gives_at_once(engine: NatsServer, name: str) -> None:
    await names_are_found(engine, name)  # newer servers let a stream have fewer consumers than they name at once
