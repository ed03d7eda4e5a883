"""The story of `polybus demo`: told by real processes, drawn on terminals of every size, and ended by Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import psutil
import pytest
from attrs import define, field
from rich.console import Console

from polybus.cli import demo as command
from polybus.cli.app import run
from polybus.cli.story.drawing import Drawing
from polybus.cli.story.frames import Recorder
from polybus.cli.story.page import page
from polybus.cli.story.showing import Unseen, can_draw
from polybus.demo.story import cast as cast_module
from polybus.demo.story import scenes
from polybus.demo.story.cast import DESKS, Actor, Cast, Line
from polybus.demo.story.programs import PROGRAMS, Excerpt, path_of, text_of
from polybus.demo.story.scenes import SCENES, Telling, story_run, tell
from tests.support import BOUND
from tests.unit.cli.support import COMMAND

ROOT = Path(__file__).resolve().parents[3]
NAMES = [scene.name for scene in SCENES]
posix = pytest.mark.skipif(os.name != "posix", reason="shells and terminals of POSIX")


# -- told ------------------------------------------------------------------------------------------------------------------


def test_every_scene_holds_and_the_recording_in_the_readme_is_what_the_script_would_make_now(tmp_path: Path) -> None:
    spec = spec_from_file_location("make_demo", ROOT / "docs" / "make_demo.py")
    assert spec is not None and spec.loader is not None
    script: Any = module_from_spec(spec)
    spec.loader.exec_module(script)
    telling, recorders = script.record(tmp_path)
    assert {name: (step.outcome, step.detail) for name, step in telling.run.steps.items() if step.outcome != "ok"} == {}
    assert list(telling.run.steps) == NAMES
    counts = telling.traffic
    assert counts["requests"] == counts["answers"] + counts["refused"] + counts["unanswered"]
    assert (counts["refused"], counts["publications"]) == (1, 4)
    assert {actor.state for actor in telling.cast.actors.values()} == {"ended"}
    for name, recorder in recorders.items():
        drawn = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert script.stable(drawn) == script.stable(recorder.svg("")), "run python docs/make_demo.py"
    root = ET.fromstring(recorders["demo.svg"].svg("a story"))
    style = "".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}style"))
    still, _, moving = style.partition("@media(prefers-reduced-motion:no-preference)")
    assert "animation" not in still and "animation" in moving


def test_in_a_pipe_the_story_is_lines_without_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    places = [out.index(f"{number}/{len(SCENES)} {scene.title}") for number, scene in enumerate(SCENES, start=1)]
    assert places == sorted(places)
    assert f"{len(SCENES)} of {len(SCENES)} scenes held" in out


def test_for_machines_it_is_json_and_a_page_and_without_zenoh_says_what_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(scenes, "find_spec", lambda name: None if name == "zenoh" else find_spec(name))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert run(["demo", "--json", "--browser"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert {scene["name"]: scene["outcome"] for scene in result["scenes"]} == dict.fromkeys(NAMES, "ok") | {"van": "not here"}
    assert "pip install 'polybus[zenoh]'" in out
    made = Path(urlsplit(result["page"]).path).read_text(encoding="utf-8")
    assert all(scene.title in made for scene in SCENES)
    assert not re.search(r"(?:src|href)=|url\(|@import", made), "it needs nothing else"


def test_show_prints_where_the_programs_are_and_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--show"]) == 0
    out = capsys.readouterr().out
    for program in PROGRAMS:
        assert f"# {path_of(program)}\n{text_of(program)}\n" in out
    with pytest.raises(ValueError, match="no line with 'async def sleep'"):
        _ = Excerpt("desk", "async def sleep").code


class Sabotage(Unseen):
    """Nobody who watches; but somebody who kills the plant when this scene begins."""

    def __init__(self, scene: str) -> None:
        super().__init__()
        self.scene = scene

    async def show(self, telling: Telling) -> None:
        await super().show(telling)
        if telling.scene.name == self.scene and telling.run.steps[self.scene].outcome == "running":
            await telling.cast.kill_plant()


def test_a_scene_that_does_not_hold_ends_the_story_and_says_what_was_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cast_module, "TIMEOUT", 0.5)
    telling = anyio.run(tell, story_run(), Sabotage("ask"), tmp_path, None)
    outcomes = [step.outcome for step in telling.run.steps.values()]
    assert outcomes == ["ok", "failed", *["waiting"] * (len(SCENES) - 2)]
    assert "ann has said 'link down" in telling.run.steps["ask"].detail
    lines = "\n".join(line.plain for line in Drawing().curtain(telling))
    assert f"1 of {len(SCENES)} scenes held" in lines
    recorder = Recorder(Drawing())
    anyio.run(recorder.show, telling)
    recorder.take()
    assert '<p class="seen failed">' in page(telling, recorder)


# -- drawn -----------------------------------------------------------------------------------------------------------------


async def no_pause(seconds: float) -> None:
    """None."""


def scene_of(name: str, *lines: Line) -> Telling:
    """The story in the middle of a scene."""
    cast = Cast(Path(), no_pause, lines=list(lines), now=12.3)
    for number, actor in enumerate(("plant", *DESKS)):
        cast.actors[actor] = Actor(1_234_567 + number, "here")
    cast.linked = dict.fromkeys(DESKS, True)
    for desk in DESKS:
        cast.show(desk, "tank.filled", "ask")
        cast.show(desk, "tank.filled", "publication")
    cast.now += 2
    run = story_run()
    run.steps[name].outcome = "running"
    return Telling(cast, run, next(scene for scene in SCENES if scene.name == name))


LONG = Line("ann", "Disconnected: the peer closed the connection without a reason", 1234.5)


@pytest.mark.parametrize("name", NAMES)
def test_a_scene_is_whole_on_a_normal_terminal_and_fits_each_other(name: str) -> None:
    telling = scene_of(name, Line("plant", "cleaning begins", 1.0), Line("", "$ kill -9 1234567"), LONG)
    shown = [line.plain.rstrip() for line in Drawing().lines(telling)]
    for line in (line for excerpt in telling.scene.code for line in excerpt.code.splitlines()):
        assert any(row.endswith(line) for row in shown), line
    for text in (telling.scene.title, telling.scene.why, LONG.text, "$ kill -9 1234567", "cleaning begins"):
        assert any(text in row for row in shown), text
    for width, height in ((80, 24), (40, 24), (40, 12), (120, 50), (72, 10), (24, 5), (200, 3), (80, 14)):
        lines = Drawing(width, height).lines(scene_of(name, LONG, LONG, LONG, LONG))
        assert len(lines) == height
        assert max(line.cell_len for line in lines) <= width
    assert all(line.plain.isascii() for line in Drawing(plain=True).lines(telling)), "for terminals without arrows"


def test_an_answer_is_drawn_after_its_question_and_a_link_that_is_down_is_seen() -> None:
    telling = scene_of("ask")
    cast = telling.cast
    cast.begin()
    cast.show("ann", "tank.level", "ask")
    cast.show("ann", "Tank", "answer")
    cast.now += 0.3
    there, back = (line.plain for line in Drawing().lines(telling)[2:4])
    assert "── tank.level ──" in there and "▶" in there
    assert "◀" not in back
    cast.now += 0.3
    assert re.search(r"◀─+ Tank ── ", Drawing().lines(telling)[3].plain)
    cast.linked["bob"] = False
    cast.actors["plant"].state = "killed"
    text = "\n".join(line.plain for line in Drawing().lines(telling))
    assert text.count("✗") == 1 and "killed" in text


def test_letters_of_a_program_cannot_move_the_terminal() -> None:
    shown = Drawing().lines(scene_of("ask", Line("ann", "Tank \x1b[2J\x9b2J\n")))
    assert not any(re.search(r"[\x00-\x1f\x7f-\x9f]", line.plain) for line in shown)


def test_force_color_makes_no_terminal_of_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert not can_draw(Console(force_terminal=True))


# -- a browser, and a terminal ---------------------------------------------------------------------------------------------


@posix
def test_a_browser_is_given_the_page_and_one_that_fails_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    browser, told = tmp_path / "browser", tmp_path / "told"
    browser.touch(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    for ends_with, opened in ((0, True), (1, False)):
        browser.write_text(f'#!/bin/sh\necho "$1" > {told}\nexit {ends_with}\n')
        assert command.open_page(tmp_path / "story.html") is opened
        assert told.read_text().strip() == (tmp_path / "story.html").as_uri()
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("without a screen a browser was started"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert command.open_page(tmp_path / "story.html") is False


@define
class Terminal:
    """The demo on a terminal of its own."""

    pid: int
    device: int
    output: bytearray = field(factory=bytearray)

    def read(self) -> bool:
        """Take what has been written; False at the end."""
        with suppress(OSError):  # Linux says so when the other side is closed
            if some := os.read(self.device, 1 << 16):
                self.output += some
                return True
        return False

    def until(self, text: str) -> None:
        while text.encode() not in self.output:
            assert self.read(), self.output.decode(errors="replace")[-3000:]

    def ended(self) -> int:
        """The exit status."""
        while self.read():
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def resize(self, rows: int, columns: int) -> None:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.device, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@contextmanager
def on_a_terminal(tmp_path: Path, *arguments: str, **environment: str) -> Iterator[Terminal]:
    import pty

    pid, device = pty.fork()
    if pid == 0:  # nothing but exec: this is a copy of the test
        given = {"TERM": "xterm-256color", "TMPDIR": str(tmp_path), **environment}
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        os.execve(COMMAND[0], [*COMMAND, "demo", *arguments], kept | given)
    terminal = Terminal(pid, device)
    terminal.resize(24, 80)
    try:
        yield terminal
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        os.close(device)


@posix
def test_the_picture_follows_the_terminal_and_who_stops_the_story_gets_it_back_with_no_process_left(tmp_path: Path) -> None:
    import termios

    with on_a_terminal(tmp_path) as terminal:
        before = termios.tcgetattr(terminal.device)
        terminal.until("has a typed answer")
        terminal.resize(20, 40)
        rule = re.compile("(?<!─)(?:─){40}(?!─)".encode())
        while (narrow := rule.search(terminal.output)) is None:  # what was drawn before is read late on a busy machine
            assert terminal.read()
        processes = psutil.Process(terminal.pid).children(recursive=True)
        assert len(processes) >= 3
        os.write(terminal.device, b"\x03")
        assert terminal.ended() == 130
        assert psutil.wait_procs(processes, timeout=BOUND / 2)[1] == []
        output = bytes(terminal.output)
        assert "─".encode() * 41 not in output[narrow.start() :]
        assert output.rfind(b"\x1b[?1049l") > output.rfind(b"\x1b[?1049h") >= 0, "the other screen was left"
        assert output.rfind(b"\x1b[?25h") > output.rfind(b"\x1b[?25l") >= 0, "the cursor is there again"
        assert termios.tcgetattr(terminal.device) == before
        assert b"Traceback" not in output
        assert list(tmp_path.iterdir()) == []


@posix
def test_a_dumb_terminal_gets_lines_and_without_colours_nothing_is_coloured(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, TERM="dumb", NO_COLOR="1") as terminal:
        terminal.until("Two programs and one URL")
        os.write(terminal.device, b"\x03")
        assert terminal.ended() == 130
        assert b"\x1b[?1049h" not in terminal.output
        assert not re.search(rb"\x1b\[[\d;]*\b(?:3[0-7]|9[0-7]|38;)[\d;]*m", bytes(terminal.output))
