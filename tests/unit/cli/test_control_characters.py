"""What a peer says reaches the terminal without characters that set its title, write over its lines or turn them around."""

import json
from collections.abc import Iterator

import pytest

from polybus.cli.app import run
from polybus.cli.values import json_line
from tests.unit.cli.support import serving

NASTY = "\x1b[31mred\x1b]0;title\x07\nERROR: none\r\x00\x9b2J \u202egnp"
FORBIDDEN = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2028]))

APP = f"""
from polybus import Bus, NotFound

bus = Bus()

@bus.handle("nasty")
async def nasty() -> None:
    raise NotFound({NASTY!r})

@bus.handle("text")
async def text() -> dict:
    return {{"said": {NASTY!r}}}
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("nasty")
    with serving(folder, app=APP) as (real, _):
        yield real


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
    assert run(["request", url, "text"]) == 0
    out = capsys.readouterr().out
    assert not set(FORBIDDEN) & set(out)
    assert json.loads(out) == {"said": NASTY}


@pytest.mark.parametrize("text", ["Übel 😀", "a\u202eb", "\x7f\x9b\u2028"])
def test_other_letters_are_printed_as_they_are(text: str) -> None:
    line = json_line(text)
    assert json.loads(line) == text
    assert (text in line) is (text == "Übel 😀")
