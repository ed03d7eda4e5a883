"""`polybus inspect`: frames without a connection."""

import io
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from polybus import Message
from polybus.cli.app import run
from polybus.message import Kind
from polybus.protocols import Ubre, Up, UProtocol
from tests.doubles.driven import Driven
from tests.unit.cli.support import Cli

NAMED = '{"request":"user.get","id":"x-1","body":{"id":7},"ttl":2000,"headers":{"a":"b"}}'
BINARY = struct.pack(">BHI", ord("R"), 10, 7) + b'ab-1\0u.get{"a":1}'


def inspected(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cli.out("inspect", *arguments, "--json").splitlines()]


def test_a_binary_frame_in_hexadecimal_is_shown_field_by_field(cli: Cli) -> None:
    (frame,) = inspected(cli, BINARY.hex(" "), "--protocol", "ubre")
    assert [(f["offset"], f["length"], f["name"], f["value"]) for f in frame["fields"]] == [
        (0, 1, "type", "0x52 'R'"),
        (1, 2, "name length", "10"),
        (3, 4, "body length", "7"),
        (7, 4, "id", "ab-1"),
        (12, 5, "subject", "u.get"),
        (17, 7, "body", '{"a":1}'),
    ]
    assert frame["messages"] == [{"kind": "request", "subject": "u.get", "id": "ab-1", "body": {"a": 1}}]


@pytest.mark.parametrize("form", ["0x{}", "{}", " {} \n"])
def test_hexadecimal_is_taken_in_the_usual_forms(form: str, cli: Cli) -> None:
    (frame,) = inspected(cli, form.format(BINARY.hex()), "--protocol", "ubre?format=binary")
    assert frame["size"] == len(BINARY)
    (frame,) = inspected(cli, BINARY.hex(":"), "--protocol", "UBRE")  # as in a URL
    assert frame["size"] == len(BINARY)


@pytest.mark.parametrize("format", ["json", "protobuf"])
def test_the_token_of_an_event_is_not_shown(format: Any, cli: Cli) -> None:
    asker = Driven(UProtocol(format=format, token="s3cret").session("client"))
    asker.send(Message(Kind.REQUEST, "x", ttl=5.0), 0.0)
    (frame,) = asker.frames_to_send()
    (found,) = inspected(cli, frame.hex(), "--protocol", f"uprotocol?format={format}")
    assert found["messages"][0]["attributes"]["token"] == "..."
    assert "s3cret" not in json.dumps(found)


def test_a_umessage_is_shown_field_by_field_without_its_token(cli: Cli) -> None:
    asker = Driven(Up(peer="//device2/CD/4", names={"UpdateDoor": 0xB}, token="s3cret").session("client"))
    asker.send(Message(Kind.REQUEST, "UpdateDoor", ttl=5.0, body={"p": 1}), 0.0)
    (frame,) = asker.frames_to_send()
    (found,) = inspected(cli, frame.hex(), "--protocol", "up")
    assert [field["name"] for field in found["fields"]] == (
        "attributes id type source sink priority ttl token payload_format payload".split()
    )
    (message,) = found["messages"]
    assert (message["kind"], message["subject"], message["body"]) == ("request", "//device2/CD/4/B", {"p": 1})
    assert message["attributes"]["token"] == "..."
    assert "s3cret" not in json.dumps(found)


@pytest.mark.parametrize("options", ["", "?format=json", "?format=protobuf"])
def test_what_strangers_write_is_shown_whatever_options_are_named(options: str, cli: Cli) -> None:
    """A hash that is text, as up-python and up-java write it: only a lenient reader takes it."""
    codec = UProtocol(format="protobuf" if "protobuf" in options else "json").codec()
    attributes = {"id": "018bcfe5-687b-8000-8000-000000000007", "source": "//v/body/1/door.front#Door", "note": "some hash"}
    frame = codec.encode([Message(Kind.PUBLISH, body="hi", attributes=attributes)]).replace(b"note", b"hash")
    (found,) = inspected(cli, frame.hex(), "--protocol", f"uprotocol{options}")
    assert (found["errors"], found["messages"][0]["body"]) == ([], "hi")
    assert run(["inspect", frame.hex(), "--protocol", f"uprotocol{options or '?'}{'&' if options else ''}mode=strict"]) == 1


def test_a_file_of_lines_and_one_with_lengths(tmp_path: Path, cli: Cli) -> None:
    lines = tmp_path / "frames.jsonl"
    lines.write_text(f'{NAMED}\n\n{{"publish":"a.b","body":1}}\n')
    first, second = inspected(cli, str(lines), "--protocol", "ubre", "--frames", "lines")
    assert first["messages"][0] | {"ttl": None} == {
        "kind": "request", "subject": "user.get", "id": "x-1", "ttl": None, "headers": {"a": "b"}, "body": {"id": 7}
    }  # fmt: skip
    assert first["messages"][0]["ttl"] == 2.0
    assert (second["number"], second["offset"]) == (2, len(NAMED) + 2)
    stream = tmp_path / "stream.bin"
    stream.write_bytes(b"".join(struct.pack(">I", len(frame)) + frame for frame in (NAMED.encode(), BINARY)))
    kinds = [frame["messages"][0]["id"] for frame in inspected(cli, str(stream), "--protocol", "ubre", "--frames", "lengths")]
    assert kinds == ["x-1", "ab-1"]


def test_stdin_is_a_source(monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(NAMED.encode())))
    assert inspected(cli, "-", "--protocol", "ubre")[0]["messages"][0]["subject"] == "user.get"


def test_for_people_it_says_the_same(cli: Cli) -> None:
    out = cli.out("inspect", BINARY.hex(), "--protocol", "ubre")
    assert "frame 1: 24 bytes" in out
    assert "12  5      subject               u.get" in out
    assert "\x1b" not in out


@pytest.mark.parametrize(
    ("source", "arguments", "says"),
    [
        (b'{"x":1}', [], "no UBRE verb"),
        (f"{NAMED}\n{NAMED}".encode(), [], "--frames lines or lengths"),
        (BINARY[:-1], [], "truncated frame"),
        (b"{}\n{}\n", ["--frames", "lines"], "2 of 2 frames"),
        (struct.pack(">I", 100) + b"{}", ["--frames", "lengths"], "frame 1: "),
    ],
)
def test_a_malformed_frame_is_shown_with_status_1(
    source: bytes, arguments: list[str], says: str, tmp_path: Path, cli: Cli
) -> None:
    (tmp_path / "frame").write_bytes(source)
    out, err = cli.both(1, "inspect", str(tmp_path / "frame"), "--protocol", "ubre", *arguments)
    assert "malformed" in out
    assert err.count("\n") == 1 and says in err


def test_an_empty_file_is_status_2(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "empty").touch()
    for source, says in ((str(tmp_path / "empty"), "the input is empty"), ("", "empty")):
        assert says in cli.line(2, "inspect", source, "--protocol", "ubre")


def test_extras_and_what_is_cut_off_are_named() -> None:
    name = b'ab-1\0u.get\0{"ttl":5}'
    full = struct.pack(">BHI", ord("R"), len(name), 0xFFFFFFFF) + name + b"1"
    assert [(f.name, f.value) for f in Ubre().dissect(full)][2:] == [
        ("body length", "-1"), ("id", "ab-1"), ("subject", "u.get"), ("extras", '{"ttl":5}'), ("body", "1")
    ]  # fmt: skip
    assert [f.note for f in Ubre().dissect(full[:10]) if "cut off" in f.note] == ["cut off: 3 bytes follow the header"]
    assert [(f.name, f.note) for f in Ubre().dissect(b"R\0")] == [("header", "cut off: a header has 7 bytes")]
    assert Ubre().dissect(BINARY + b"xx")[-1].name == "trailing"
    assert list(Ubre().dissect(NAMED.encode())) == []
