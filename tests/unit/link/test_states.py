"""The table of a link's states."""

import pytest

from polybus._core.link.state import TRANSITIONS, Change, State


def test_a_link_that_is_closed_stays_closed() -> None:
    assert set(TRANSITIONS[State.CLOSED].values()) == {State.CLOSED}


@pytest.mark.parametrize("state", [State.CLOSING, State.FAILING, State.DOWN])
def test_only_a_new_connection_brings_a_link_up_again(state: State) -> None:
    reached = {TRANSITIONS[state][change] for change in Change if change is not Change.ATTACHED}
    assert State.UP not in reached and State.CONNECTING not in reached


@pytest.mark.parametrize("state", [state for state in State if state is not State.CLOSED])
def test_the_end_of_a_connection_is_down_or_closed_in_every_state(state: State) -> None:
    assert (TRANSITIONS[state][Change.LOST], TRANSITIONS[state][Change.ENDED]) == (State.DOWN, State.CLOSED)


def test_nothing_is_written_after_a_cut_or_before_the_handshake_is_over() -> None:
    assert {TRANSITIONS[state][Change.CUT] for state in (State.CONNECTING, State.UP, State.CLOSING)} == {State.FAILING}
    assert TRANSITIONS[State.CONNECTING][Change.CLOSE] is State.FAILING
