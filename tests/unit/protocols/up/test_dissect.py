"""A message field by field: the worked examples, and any bytes."""

import pytest

from polybus.protocols import Up
from tests.vectors import up_vectors as vectors


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
        ("", None),
        ("0a", ("field", "0a", "cut off")),
        ("0a05", ("attributes", "0 bytes", "cut off: 5 bytes, 0 are there")),
        ("1205aa", ("payload", "\\xaa", "cut off: 5 bytes, 1 are there")),
        ("0b", ("field", "0b", "no protocol buffers")),
        ("1801", ("field 3", "1", "of no UMessage")),
        ("2d01020304", ("field 5", "01 02 03 04", "of no UMessage")),
        ("0a021009", ("type", "9", "of no type")),
        ("0a02281f", ("priority", "31", "of no class")),
        ("0a024063", ("commstatus", "99", "of no code")),
        ("0a024005", ("commstatus", "5", "NOT_FOUND")),
        ("0a024000", ("commstatus", "0", "OK")),
        ("0a023000", ("ttl", "0", "for ever")),
        ("0a026009", ("payload_format", "9", "of no format")),
        ("0a023803", ("permission_level", "3", "")),
        ("0a041a020a00", ("source", "/0/0/0", "an entity")),
        ("0a041a022001", ("source", "/0/0/1", "a method")),
        ("0a061a0420ffff03", ("source", "/0/0/FFFF", "a pattern")),
        ("0a051a030a0141", ("source", "0a 01 41", "not that: 'A' is no authority")),
        ("0a021803", ("source", "3", "not that: an address is bytes")),
        ("0a020801", ("id", "1", "not that: an id is bytes")),
        ("0a020a00", ("id", "00000000-0000-0000-0000-000000000000", "no UUID of version 7")),
        ("0a045a026869", ("traceparent", "hi", "")),
        ("0a025801", ("traceparent", "1", "not text")),
        ("0a026801", ("field 13", "1", "of a later release")),
    ],
)
def test_what_is_wrong_is_said(data: str, field: tuple[str, str, str] | None) -> None:
    found = seen(bytes.fromhex(data))
    if field is None:
        assert found == []
        return
    name, value, note = found[-1]
    assert (name, value) == field[:2]
    assert note.startswith(field[2])
