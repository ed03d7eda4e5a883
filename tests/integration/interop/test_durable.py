"""Stored publications and durable handlers over real NATS servers: the tests of the engine in memory."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.interop.nats_servers import VERSIONS, NatsServer, nats_server
from tests.unit.cluster.test_administration import (
    test_a_letter_is_not_stored_again_for_a_handler_that_is_gone,
    test_dead_letters_are_listed_tried_again_and_dropped,
    test_letters_that_come_while_they_are_listed_are_for_the_next_time,
    test_names_are_found_however_many_an_engine_gives_at_once,
    test_stores_are_listed_shown_made_and_removed,
    test_what_a_worker_cannot_read_dies_with_its_body_and_is_kept_whole,
)
from tests.unit.cluster.test_durable import (
    name,
    test_a_consumer_that_was_removed_is_made_again_and_that_is_said,
    test_a_consumer_that_would_lose_what_it_was_given_is_named,
    test_a_drain_finishes_what_runs_and_the_others_go_on,
    test_a_durable_handler_that_differs_is_named_with_the_argument,
    test_a_handler_that_fails_is_tried_again_with_the_same_id,
    test_a_listener_that_takes_nothing_keeps_nothing_from_the_store,
    test_a_new_durable_handler_begins_where_it_is_told_to,
    test_a_pattern_of_uris_is_no_durable_one,
    test_a_publication_that_is_not_known_to_be_stored_ends_at_its_deadline,
    test_a_store_that_is_full_says_so,
    test_a_store_that_is_there_and_differs_is_named_with_the_argument,
    test_a_store_that_keeps_a_part_of_it_alone_is_said,
    test_a_stream_that_would_lose_what_it_is_said_to_keep_is_named,
    test_a_worker_that_drains_takes_no_attempt_of_what_it_does_not_handle,
    test_an_id_is_for_what_is_stored,
    test_an_id_of_another_subject_is_said_and_not_taken_for_stored,
    test_each_publication_is_for_one_worker_of_each_durable_handler,
    test_headers_for_the_engine_are_the_buss_own,
    test_large_publications_come_as_many_at_a_time_as_are_good_for_the_link,
    test_more_copies_than_servers_are_refused,
    test_of_two_versions_that_make_a_consumer_at_once_the_later_is_told_that_it_differs,
    test_ordered_is_one_at_a_time_in_the_whole_cluster,
    test_two_stores_do_not_keep_the_same,
    test_what_a_store_of_work_cannot_is_said,
    test_what_a_worker_is_at_when_it_is_closed_comes_to_others_at_once,
    test_what_is_published_to_a_store_is_stored_and_heard_once_by_everybody,
    test_what_is_published_twice_under_an_id_is_stored_once,
    test_what_is_too_large_to_be_kept_with_its_story_dies_all_the_same,
    test_what_no_attempt_can_deal_with_is_a_dead_letter,
    test_who_answers_a_publication_is_not_the_store,
    test_without_a_store_a_durable_handler_is_one_clear_error,
)

pytestmark = pytest.mark.anyio

__all__ = [
    "name",
    "test_a_consumer_that_was_removed_is_made_again_and_that_is_said",
    "test_a_drain_finishes_what_runs_and_the_others_go_on",
    "test_a_durable_handler_that_differs_is_named_with_the_argument",
    "test_a_handler_that_fails_is_tried_again_with_the_same_id",
    "test_a_listener_that_takes_nothing_keeps_nothing_from_the_store",
    "test_a_new_durable_handler_begins_where_it_is_told_to",
    "test_a_pattern_of_uris_is_no_durable_one",
    "test_a_publication_that_is_not_known_to_be_stored_ends_at_its_deadline",
    "test_a_store_that_is_full_says_so",
    "test_a_store_that_is_there_and_differs_is_named_with_the_argument",
    "test_a_store_that_keeps_a_part_of_it_alone_is_said",
    "test_a_worker_that_drains_takes_no_attempt_of_what_it_does_not_handle",
    "test_an_id_is_for_what_is_stored",
    "test_an_id_of_another_subject_is_said_and_not_taken_for_stored",
    "test_a_letter_is_not_stored_again_for_a_handler_that_is_gone",
    "test_letters_that_come_while_they_are_listed_are_for_the_next_time",
    "test_names_are_found_however_many_an_engine_gives_at_once",
    "test_dead_letters_are_listed_tried_again_and_dropped",
    "test_each_publication_is_for_one_worker_of_each_durable_handler",
    "test_headers_for_the_engine_are_the_buss_own",
    "test_large_publications_come_as_many_at_a_time_as_are_good_for_the_link",
    "test_ordered_is_one_at_a_time_in_the_whole_cluster",
    "test_stores_are_listed_shown_made_and_removed",
    "test_two_stores_do_not_keep_the_same",
    "test_of_two_versions_that_make_a_consumer_at_once_the_later_is_told_that_it_differs",
    "test_what_a_store_of_work_cannot_is_said",
    "test_more_copies_than_servers_are_refused",
    "test_a_stream_that_would_lose_what_it_is_said_to_keep_is_named",
    "test_a_consumer_that_would_lose_what_it_was_given_is_named",
    "test_what_a_worker_cannot_read_dies_with_its_body_and_is_kept_whole",
    "test_what_a_worker_is_at_when_it_is_closed_comes_to_others_at_once",
    "test_what_is_published_to_a_store_is_stored_and_heard_once_by_everybody",
    "test_what_is_published_twice_under_an_id_is_stored_once",
    "test_what_is_too_large_to_be_kept_with_its_story_dies_all_the_same",
    "test_what_no_attempt_can_deal_with_is_a_dead_letter",
    "test_who_answers_a_publication_is_not_the_store",
    "test_without_a_store_a_durable_handler_is_one_clear_error",
]


@pytest.fixture(scope="module", params=VERSIONS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    folder: Path = tmp_path_factory.mktemp("stores")
    with nats_server(request.param, f'jetstream {{ store_dir: "{folder}" }}') as server:
        yield server
