"""What an error says of itself: it may hold what a stranger has sent."""

import pytest

from polybus import Forbidden, RequestError
from polybus.errors import Code


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
    ],
)
def test_characters_that_write_over_a_line_or_begin_one_in_a_reason_are_shown_as_escapes(
    error: RequestError, shown: str
) -> None:
    assert str(error) == shown
