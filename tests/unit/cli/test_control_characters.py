"""What a peer says reaches the terminal without characters that set its title, write over its lines or turn them around."""

import json
from pathlib import Path

import pytest

from polybus.capture.schema import FLAG_GAP_BEFORE
from polybus.capture.store.segments import SegmentWriter
from polybus.cli.app import run
from polybus.cli.values import json_line
from tests.unit.capture.rows import batch, row
from tests.unit.cli.app import NASTY

FORBIDDEN = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2028]))


@pytest.mark.parametrize(
    "arguments", [("request", "{}", "nasty"), ("doctor", "{}", "--subject", "nasty")], ids=["request", "doctor"]
)
def test_the_text_of_an_error_is_one_line_on_stderr_with_escapes(
    arguments: tuple[str, ...], url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([argument.format(url) for argument in arguments]) == 1
    out, err = capsys.readouterr()
    assert err.count("\n") == 1 and r"\x1b[31mred" in err and r"\u202egnp" in err
    assert not set(FORBIDDEN) & set(out + err)


def test_the_table_of_doctor_has_a_row_for_each_step_whatever_the_peer_says(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["doctor", url, "--subject", "nasty"]) == 1
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[1] for row in rows[1:]] == ["resolve", "connect", "open", "handshake", "peer", "request"]


def test_json_has_escapes_for_such_characters_and_the_same_value(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["request", url, "said"]) == 0
    out = capsys.readouterr().out
    assert not set(FORBIDDEN) & set(out)
    assert json.loads(out) == {"said": NASTY}


@pytest.mark.parametrize("text", ["Übel 😀", "a\u202eb", "\x7f\x9b\u2028"])
def test_other_letters_are_printed_as_they_are(text: str) -> None:
    line = json_line(text)
    assert json.loads(line) == text
    assert (text in line) is (text == "Übel 😀")


@pytest.mark.parametrize("command", ["info", "verify", "decode"])
def test_what_a_capture_of_somebody_else_says_reaches_the_terminal_without_them(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = SegmentWriter(tmp_path, 0, {"capture_id": NASTY, "replay_of": NASTY, "source": NASTY})
    names = {"capture_id": NASTY, "conn_id": NASTY, "peer": NASTY, "protocol": NASTY, "transport": NASTY}
    gap = {"frame": None, "flags": FLAG_GAP_BEFORE, "options": json.dumps({"gap": NASTY, "frames": 1})}
    writer.write(batch(row(0, **names), row(1, **gap), row(2, protocol=None)), 0)
    writer.end(3)
    writer.seal()
    assert run(["capture", command, str(tmp_path)]) == 0
    assert not set(FORBIDDEN) & set("".join(capsys.readouterr()))
