"""The options: what a URL can say, and what is refused; tables of names from code and from files."""

import re
from typing import Any

import pytest

from polybus.protocols.up import Up, names_in
from polybus.protocols.up.names import table_of
from polybus.protocols.up.uuris import parse_uuri

FILE = """
"door.opened" = 0x80CD
UpdateDoor = "//device2/CD/4/B"
light = [0xC, 0x80CE]
"""


def test_a_table_of_a_file_is_that_of_code() -> None:
    from_file = Up(names=names_in(FILE))
    assert from_file.names == (
        ("door.opened", (0x80CD,)),
        ("UpdateDoor", (parse_uuri("//device2/CD/4/B"),)),
        ("light", (0xC, 0x80CE)),
    )
    assert table_of(from_file.names) == from_file.names
    assert hash(from_file) == hash(Up(names=names_in(FILE), clock=from_file.clock))


def test_a_file_that_is_no_table_is_refused_with_the_place() -> None:
    with pytest.raises(ValueError, match=r"up: doors\.toml: no TOML: .*line 1"):
        names_in("door opened = 1", file="doors.toml")
    for hostile in ("a = " + "[" * 100_000, "a = " + "{b = " * 100_000, "a = " + "1" * 5000):
        with pytest.raises(ValueError, match=r"^up: doors\.toml: no "):
            names_in(hostile, file="doors.toml")
    with pytest.raises(ValueError, match=r"Path\('names\.toml'\)\.read_text\(\)"):
        names_in("names.toml")


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("UpdateDoor = 0xFFFF", r"65535 of 'UpdateDoor' is not a number from 1 to 7FFF"),
        ("'UpdateDoor' = 'x'", "'UpdateDoor': 'x' is no address"),
        ('"UpdateDoor" = []', "'UpdateDoor' has one method, one topic"),
        ("seat = 0x80CD", "80CD is both 'door.opened' and 'seat'"),
        ("  door.closed = 0x8001", "'door' is a table of several: a name with a dot stands in quotes, as in \"door.closed\""),
        ("[door]\nclosed = 0x8001", "'door' is a table of several"),
        ('"a/b" = 1', "'a/b' is no name"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(line: str, text: str) -> None:
    table = f'\ufeff# names\n"door.opened" = 0x80CD\nlight = 12\n\n{line}\n'
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        names_in(table, file="names.toml")
    assert str(caught.value).startswith("up: names.toml, line 5: ")


def test_a_name_that_is_written_otherwise_is_told_without_its_line() -> None:
    with pytest.raises(ValueError, match="^up: names: 65535 of 'ö' is not a number"):
        names_in('"\\u00f6" = 0xFFFF')


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ({"a": 0}, "is not a number from 1"),
        ({"a": 0xFFFF}, "is not a number from 1"),
        ({"a": True}, "is not a number from 1"),
        ({"a": 1.5}, "is not a number from 1"),
        ({"a": "//x/1/1/0"}, "is not a number from 1"),
        ({"a": "//*/1/1/1"}, "is not a number from 1"),
        ({"a": "//X/1/1/1"}, "no authority"),
        ({"a": []}, "one method, one topic"),
        ({"a": [1, 2]}, "one method, one topic"),
        ({"a": 1, "b": 1}, "both 'a' and 'b'"),
        ({"a/b": 1}, "without a slash"),
        ({"": 1}, "is no name"),
        ({1: 1}, "is no name"),
        (["a"], r"names=\"\['a'\]\": a table is needed, from names to numbers or addresses: {'door.opened': 0x80CD}"),
        ("names.toml", "names='names.toml': a table is needed, .*; names_in reads one from a file's text"),
    ],
)
def test_a_wrong_name_or_number_is_named(names: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Up(names=names)


def test_a_url_says_entities_and_how_text_goes() -> None:
    options = {"entity": "//device1/10AB/3", "peer": "//device2/CD/4", "strings": "text"}
    adapter = Up.from_options(options)
    assert (adapter.entity, adapter.peer) == ("//device1/10AB/3", "//device2/CD/4")
    assert adapter.url_options == {"strings": "text"}  # of a listener's URL: its clients are somebody else
