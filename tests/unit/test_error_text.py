"""What an error says of itself: it may hold what a stranger has sent. And what becomes of it in a copy."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from polybus import BusError, ConnectFailed, DeadlineExceeded, Disconnected, EncodeError, Forbidden, NotFound, RequestError
from polybus.errors import Code, RemoteProtocolError, TooLarge, Unsupported


def test_of_a_long_text_and_reason_a_part_is_shown_with_the_size_and_all_of_it_is_kept() -> None:
    error = RequestError(Code.UNKNOWN, "x" * 100_000, reason="r" * 100_000)
    assert len(str(error)) < 5000
    assert len(repr(error)) < 5000
    assert "(100000 characters)" in str(error)
    assert (error.text, error.reason) == ("x" * 100_000, "r" * 100_000)


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (Forbidden("no\x1b[2J\r\x00\x85"), r"PERMISSION_DENIED: no\x1b[2J\r\x00\x85"),
        (Forbidden("two\nlines\tand more"), "PERMISSION_DENIED: two\nlines\tand more"),
        (Forbidden("no", reason="a\nERROR: b\u2028"), r"PERMISSION_DENIED [a\nERROR: b\u2028]: no"),
        (Forbidden("ein Übel 😀", reason="größe"), "PERMISSION_DENIED [größe]: ein Übel 😀"),
        # Marks that turn the direction of the text behind them.
        (Forbidden("gpj.\u202egnp \u2066x\u2069"), r"PERMISSION_DENIED: gpj.\u202egnp \u2066x\u2069"),
    ],
)
def test_characters_that_write_over_a_line_or_begin_one_are_shown_as_escapes(error: RequestError, shown: str) -> None:
    assert str(error) == shown


@pytest.mark.parametrize(
    "error",
    [
        Disconnected("bye\x1b]0;title\x07\nERROR: none", "127.0.0.1:9"),
        ConnectFailed("ubre+ws://127.0.0.1:9", "bye\x1b]0;title\x07\nERROR: none"),
        DeadlineExceeded("a", 1.0, "remote", "bye\x1b]0;title\x07\nERROR: none"),
        RemoteProtocolError("bye\x1b]0;title\x07\nERROR: none"),
        Forbidden("no", reason="bye\x1b]0;title\x07\nERROR: none"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_a_peer_gives_as_its_reason_is_one_line_without_control_characters_in_every_error(error: BusError) -> None:
    assert r"bye\x1b]0;title\x07\nERROR: none" in str(error)


def test_where_there_was_no_link_the_reason_stands_alone_and_no_link_is_said_to_be_down() -> None:
    assert str(Disconnected("the user 'zoe' is not connected here")) == (
        "the user 'zoe' is not connected here; the request was never sent, or the peer did not read it"
    )
    assert str(Disconnected()) == "the link to the peer is down; the request was never sent, or the peer did not read it"


@pytest.mark.parametrize(("elapsed", "shown"), [(1.0064, "1.006 s"), (0.001, "0.001 s"), (0.00012, "0.0001 s"), (0.0, "0 s")])
def test_a_deadline_of_less_than_a_millisecond_is_no_zero(elapsed: float, shown: str) -> None:
    assert f"no answer to 'a' after {shown}: " in str(DeadlineExceeded("a", elapsed))


class NoSuchUser(NotFound):
    def __init__(self, user_id: int) -> None:
        self.user_id = user_id
        super().__init__(f"no user {user_id}", detail={"id": user_id})


class Own(RequestError): ...


class OwnAndOfPython(Forbidden, PermissionError): ...


ERRORS: list[BusError] = [
    *(TooLarge("x"), NoSuchUser(7), Own(Code.ABORTED, "x", reason="y"), OwnAndOfPython("x")),
    *(RequestError(Code.ALREADY_EXISTS, "x"), DeadlineExceeded("a", 1.0, "remote", "x", "y", [7])),
    *(Disconnected("x", "y", True), ConnectFailed("ubre+ws://a", "x", errno=111, status=404)),
    *(RemoteProtocolError("x", reason="y", answer_id=7), EncodeError("x", "$.a"), Unsupported("x")),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_a_copy_of_an_error_is_of_its_class_and_says_the_same(error: BusError, copied: Callable[[Any], Any]) -> None:
    made = copied(error)
    assert type(made) is type(error)
    assert (str(made), vars(made), made.args) == (str(error), vars(error), error.args)


def test_a_connect_failed_that_skips_the_constructor_has_neither_errno_nor_status() -> None:
    class Bare(ConnectFailed):
        def __init__(self) -> None:
            Exception.__init__(self)

    assert (Bare().errno, Bare().status) == (None, None)


def test_what_is_relayed_is_of_the_class_that_it_was_and_no_more_received() -> None:
    error = NoSuchUser(7)
    error.attempts, error.subject, error._received = 3, "a", True
    relayed = error.relay()
    assert type(relayed) is NoSuchUser
    assert (str(relayed), relayed.detail, relayed.received) == ("NOT_FOUND: no user 7", {"id": 7}, False)
    assert str(error) == "NOT_FOUND ('a'): no user 7 (after 3 attempts)"


def test_wrong_arguments_are_reported_for_the_class_that_was_called() -> None:
    called: Any = RequestError
    with pytest.raises(TypeError, match=r"^RequestError\."):
        called("not here", code=Code.NOT_FOUND)
