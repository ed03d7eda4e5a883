"""The options of the protocol, and a message field by field: the worked examples, and any bytes."""

import re
from typing import Any

import pytest

from polybus.protocols.up import Up, names_in
from polybus.protocols.up.names import table_in, table_of
from polybus.protocols.up.uuris import parse_uuri
from tests.vectors import up_vectors as vectors

FILE = """
"door.opened" = 0x80CD
UpdateDoor = "//device2/CD/4/B"
light = [0xC, 0x80CE]
"""


def test_a_table_of_a_file_is_that_of_code() -> None:
    from_file = Up(names=names_in(FILE))
    update = parse_uuri("//device2/CD/4/B")
    assert from_file.names == (("door.opened", (0x80CD,)), ("UpdateDoor", (update,)), ("light", (0xC, 0x80CE)))
    assert table_of(from_file.names) == from_file.names
    assert hash(from_file) == hash(Up(names=names_in(FILE), clock=from_file.clock))
    assert table_in('"tank.get" = 0x00010001', "reports also name the actions of CSB", 1 << 32) == {"tank.get": 0x10001}


def test_a_file_that_is_no_table_is_refused_with_the_place_and_a_name_that_is_written_otherwise_without_its_line() -> None:
    with pytest.raises(ValueError, match=r"up: doors\.toml: not TOML: .*line 1"):
        names_in("door opened = 1", file="doors.toml")
    for hostile in ("a = " + "[" * 100_000, "a = " + "{b = " * 100_000, "a = " + "1" * 5000):
        with pytest.raises(ValueError, match=r"^up: doors\.toml: not "):
            names_in(hostile, file="doors.toml")
    with pytest.raises(ValueError, match=r"Path\('names\.toml'\)\.read_text\(\)"):
        names_in("names.toml")
    with pytest.raises(ValueError, match="^up: names: 65535 of 'ö' is not a number"):
        names_in('"\\u00f6" = 0xFFFF')


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("UpdateDoor = 0xFFFF", r"65535 of 'UpdateDoor' is not a number from 1 to 7FFF"),
        ("'UpdateDoor' = 'x'", "'UpdateDoor': 'x' is not an address"),
        ('"UpdateDoor" = []', "'UpdateDoor' has one method, one topic"),
        ("seat = 0x80CD", "80CD is both 'door.opened' and 'seat'"),
        ("  door.closed = 0x8001", "'door' is a table of several: write a name with a dot in quotes, as in \"door.closed\""),
        ("[door]\nclosed = 0x8001", "'door' is a table of several"),
        ('"a/b" = 1', "'a/b' is not a name"),
    ],
)
def test_what_is_wrong_in_a_file_is_told_with_its_line(line: str, text: str) -> None:
    table = f'\ufeff# names\n"door.opened" = 0x80CD\nlight = 12\n\n{line}\n'
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        names_in(table, file="names.toml")
    assert str(caught.value).startswith("up: names.toml, line 5: ")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        *(({"a": given}, "is not a number from 1") for given in (0, 0xFFFF, True, 1.5, "//x/1/1/0", "//*/1/1/1")),
        ({"a": "//X/1/1/1"}, "not an authority"),
        *(({"a": given}, "one method, one topic") for given in ([], [1, 2])),
        ({"a": 1, "b": 1}, "both 'a' and 'b'"),
        ({"a/b": 1}, "without a slash"),
        *(({name: 1}, "is not a name") for name in ("", 1)),
        (["a"], r"names=\['a'\] must be a table from names to numbers or addresses: {'door.opened': 0x80CD}"),
        ("names.toml", "names='names.toml' must be a table .*; names_in reads one from a file's text"),
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


def seen(frame: bytes) -> list[tuple[str, str, str]]:
    return [(one.name, one.value, one.note) for one in Up().dissect(frame)]


def test_the_worked_request_is_taken_apart_without_its_token() -> None:
    assert seen(vectors.REQUEST) == [
        ("attributes", "67 bytes", ""),
        ("id", vectors.ID.format(1), "made 1700000000123 ms after 1970"),
        ("type", "2", "up-req.v1"),
        ("source", "//device1/403AB/3/0", "an entity"),
        ("sink", "//device2/CD/4/B", "a method"),
        ("priority", "5", "CS4"),
        ("ttl", "2000", "ms"),
        ("token", "...", "not shown"),
        ("payload_format", "3", "json"),
        ("payload", '{"p":50}', ""),
    ]


def test_places_are_those_of_the_bytes() -> None:
    found = list(Up().dissect(vectors.PUBLICATION))
    assert [(one.offset, one.length) for one in found] == [
        (0, 2), (2, 20), (22, 2), (24, 20), (44, 2), (46, 3), (49, 2), (51, 6)
    ]  # fmt: skip
    assert sum(one.length for one in found) == len(vectors.PUBLICATION)


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ("0a", ("field", "0a", "cut off")),
        ("0a05", ("attributes", "0 bytes", "cut off: 5 bytes, 0 are there")),
        ("1205aa", ("payload", "\\xaa", "cut off: 5 bytes, 1 are there")),
        ("0b", ("field", "0b", "no protocol buffers")),
        ("1801", ("field 3", "1", "unknown")),
        ("0a021009", ("type", "9", "of no type")),
        ("0a02281f", ("priority", "31", "of no class")),
        ("0a024063", ("commstatus", "99", "of no code")),
        ("0a024000", ("commstatus", "0", "OK")),
        ("0a023000", ("ttl", "0", "for ever")),
        ("0a026009", ("payload_format", "9", "of no format")),
        ("0a041a020a00", ("source", "/0/0/0", "an entity")),
        ("0a061a0420ffff03", ("source", "/0/0/FFFF", "a pattern")),
        ("0a051a030a0141", ("source", "0a 01 41", "not that: 'A' is not an authority")),
        ("0a020801", ("id", "1", "not bytes")),
        ("0a020a00", ("id", "00000000-0000-0000-0000-000000000000", "not a UUID of version 7")),
        ("0a033a0161", ("permission_level", "61", "not a number")),
        ("0a045a026869", ("traceparent", "hi", "")),
        ("0a026801", ("field 13", "1", "of a later version")),
    ],
)
def test_what_is_wrong_is_said(data: str, field: tuple[str, str, str]) -> None:
    name, value, note = seen(bytes.fromhex(data))[-1]
    assert (name, value) == field[:2]
    assert note.startswith(field[2])
