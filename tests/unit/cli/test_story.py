"""The story of `polybus demo`: told by real processes, drawn on terminals of every size, and ended in every way."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import anyio
import pytest
from attrs import define, field
from rich.console import Console

import polybus.demo.story
from polybus.cli import demo as command
from polybus.cli.app import run
from polybus.cli.matrix import Progress
from polybus.cli.story.drawing import Drawing
from polybus.cli.story.frames import Recorder
from polybus.cli.story.page import page
from polybus.cli.story.showing import Unseen, can_draw
from polybus.demo.play import DemoRow, RowRun
from polybus.demo.rows import all_rows
from polybus.demo.story import cast as cast_module
from polybus.demo.story import scenes
from polybus.demo.story.cast import DESKS, Actor, Cast, Line
from polybus.demo.story.programs import PROGRAMS, Excerpt, path_of, text_of
from polybus.demo.story.scenes import SCENES, Scene, Telling, story_run, tell
from tests.support import BOUND
from tests.unit.cli.support import COMMAND, one_line

ROOT = Path(__file__).resolve().parents[3]
NAMES = [scene.name for scene in SCENES]


async def no_pause(seconds: float) -> None:
    """None."""


def the_script() -> Any:
    """docs/make_demo.py"""
    spec = spec_from_file_location("make_demo", ROOT / "docs" / "make_demo.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Telling, dict[str, Recorder]]:
    """The story, told once, and its recordings."""
    told: tuple[Telling, dict[str, Recorder]] = the_script().record(tmp_path_factory.mktemp("story"))
    return told


# -- told ------------------------------------------------------------------------------------------------------------------


def test_every_scene_of_the_story_holds_and_the_recording_counts_it(told: tuple[Telling, dict[str, Recorder]]) -> None:
    telling, _ = told
    assert {name: (step.outcome, step.detail) for name, step in telling.run.steps.items() if step.outcome != "ok"} == {}
    assert list(telling.run.steps) == NAMES
    counts = telling.traffic
    assert counts["requests"] == counts["answers"] + counts["refused"] + counts["unanswered"]
    assert (counts["refused"], counts["publications"]) == (1, 4)
    assert counts["of streams"] > 3
    told_after = re.search(r"told after (\d+) ms", telling.run.steps["kill"].detail)
    assert told_after is not None
    assert {actor.state for actor in telling.cast.actors.values()} == {"ended"}


def test_in_a_pipe_the_story_is_lines_without_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    places = [out.index(f"{number}/{len(SCENES)} {scene.title}") for number, scene in enumerate(SCENES, start=1)]
    assert places == sorted(places)
    for scene in SCENES:
        assert all(line in out for excerpt in scene.code for line in excerpt.code.splitlines())
    assert "ann   the body does not fit: Expected `float`, got `str` (at $.litres)" in out
    assert f"{len(SCENES)} of {len(SCENES)} scenes held" in out


def test_for_machines_it_is_json_and_a_page(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    assert run(["demo", "--json", "--browser"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert result["ok"] is True
    assert {scene["name"]: scene["outcome"] for scene in result["scenes"]} == dict.fromkeys(NAMES, "ok")
    assert result["traffic"]["publications"] == 4
    made = Path(urlsplit(result["page"]).path).read_text(encoding="utf-8")
    for scene in SCENES:
        assert scene.title in made
    assert not re.search(r"(?:src|href)=|url\(|@import", made), "it needs nothing else"


def test_without_zenoh_the_story_says_what_is_left_out_and_holds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scenes, "find_spec", lambda name: None if name == "zenoh" else find_spec(name))
    assert run(["demo", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    left_out = [scene for scene in result["scenes"] if scene["outcome"] == "not here"]
    assert [scene["name"] for scene in left_out] == ["van"]
    assert "pip install 'polybus[zenoh]'" in left_out[0]["detail"]
    assert result["traffic"]["publications"] == 2


@pytest.mark.parametrize("program", PROGRAMS)
def test_show_prints_where_the_programs_are_and_what_is_in_them(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--show"]) == 0
    out = capsys.readouterr().out
    assert f"# {path_of(program)}\n{text_of(program)}\n" in out
    assert path_of(program).parent == Path(polybus.demo.story.__file__).parent


@pytest.mark.parametrize("words", ["--show --all", "--browser --all", "--show --only tcp", "--browser --only tcp"])
def test_what_is_about_the_story_is_not_for_the_matrix(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, "demo", *words.split())
    assert status == 2
    assert "use it without --all and --only" in text


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
    assert not telling.run.ok
    outcomes = [step.outcome for step in telling.run.steps.values()]
    assert outcomes == ["ok", "failed", *["waiting"] * (len(SCENES) - 2)]
    assert "ann has said 'link down" in telling.run.steps["ask"].detail
    lines = "\n".join(line.plain for line in Drawing().curtain(telling))
    assert f"1 of {len(SCENES)} scenes held" in lines
    assert "✗ ask" in lines


def test_without_pyarrow_the_story_is_whole_but_for_the_recording(tmp_path: Path) -> None:
    telling = anyio.run(tell, story_run(), Unseen(), tmp_path, None)
    assert telling.run.ok
    assert telling.run.steps["count"].outcome == "not here"
    assert "pip install 'polybus[capture]'" in telling.run.steps["count"].detail


# -- drawn -----------------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("scene", SCENES, ids=NAMES)
def test_on_a_normal_terminal_nothing_of_a_scene_is_wrapped_or_cut_off(scene: Scene) -> None:
    telling = scene_of(scene.name, Line("plant", "cleaning begins", 1.0), Line("", "$ kill -9 1234567"), LONG)
    shown = [line.plain.rstrip() for line in Drawing().lines(telling)]
    for excerpt in scene.code:
        for line in excerpt.code.splitlines():
            assert any(row.endswith(line) for row in shown), line
    for text in (scene.title, scene.why, LONG.text, "$ kill -9 1234567", "cleaning begins"):
        assert any(text in row for row in shown), text
    assert any(row.startswith("· meet" if scene is not SCENES[0] else "● meet") for row in shown)


@pytest.mark.parametrize("scene", NAMES)
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 24), (40, 12), (120, 50), (72, 10), (24, 5), (200, 3)])
def test_a_picture_is_as_high_as_the_terminal_and_never_wider(scene: str, width: int, height: int) -> None:
    lines = Drawing(width, height).lines(scene_of(scene, LONG, LONG, LONG, LONG))
    assert len(lines) == height
    assert max(line.cell_len for line in lines) <= width


@pytest.mark.parametrize("scene", NAMES)
def test_in_a_narrow_or_low_terminal_what_was_said_stays(scene: str) -> None:
    for width, height in ((40, 24), (80, 14)):
        shown = " ".join(line.plain.strip() for line in Drawing(width, height).lines(scene_of(scene, LONG)))
        assert "without a reason" in " ".join(shown.split()), (width, height)


def test_an_answer_is_drawn_after_its_question() -> None:
    telling = scene_of("ask")
    cast = telling.cast
    cast.begin()
    cast.show("ann", "tank.level", "ask")
    cast.show("ann", "Tank", "answer")

    def drawn() -> list[str]:
        return [line.plain for line in Drawing().lines(telling)[2:4]]

    there, back = drawn()
    assert "▶" not in there and "◀" not in back
    cast.now += 0.3
    there, back = drawn()
    assert "── tank.level ──" in there and "▶" in there
    assert "◀" not in back
    cast.now += 0.3
    there, back = drawn()
    assert "▶" in there
    assert re.search(r"◀─+ Tank ── ", back)


def test_a_link_that_is_down_and_a_plant_that_was_killed_are_seen() -> None:
    telling = scene_of("kill")
    telling.cast.begin()
    telling.cast.linked["bob"] = False
    telling.cast.actors["plant"].state = "killed"
    text = "\n".join(line.plain for line in Drawing().lines(telling))
    assert text.count("✗") == 1
    assert "killed" in text


def test_terminals_without_arrows_get_letters_that_they_have() -> None:
    for scene in NAMES:
        drawing = Drawing(plain=True)
        assert all(line.plain.isascii() for line in drawing.lines(scene_of(scene, LONG)))


def test_letters_of_a_program_cannot_move_the_terminal() -> None:
    shown = Drawing().lines(scene_of("ask", Line("ann", "Tank \x1b[2J\x9b2J\n")))
    assert not any(re.search(r"[\x00-\x1f\x7f-\x9f]", line.plain) for line in shown)


def test_an_excerpt_is_lines_of_the_program_up_to_an_empty_one() -> None:
    excerpt = Excerpt("desk", "async def ask")
    assert excerpt.code.startswith("async def ask(bus: Bus) -> None:\n    tank = ")
    assert excerpt.code in text_of("desk")
    assert Excerpt("desk", "await bus.request(", 1).code.count("\n") == 0
    with pytest.raises(ValueError, match="no line with 'async def sleep'"):
        _ = Excerpt("desk", "async def sleep").code


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_can_be_read_in_a_minute(program: str) -> None:
    lines = text_of(program).splitlines()
    assert len(lines) < 100
    assert max(map(len, lines)) <= 128


# -- recorded --------------------------------------------------------------------------------------------------------------


def test_the_recording_moves_only_where_the_reader_allows_it(told: tuple[Telling, dict[str, Recorder]]) -> None:
    recorder = told[1]["demo.svg"]
    picture = recorder.svg("a story")
    root = ET.fromstring(picture)
    assert root.get("aria-label") == "a story"
    style = "".join(element.text or "" for element in root.iter("{http://www.w3.org/2000/svg}style"))
    still, _, moving = style.partition("@media(prefers-reduced-motion:no-preference)")
    assert "animation" not in still
    assert "animation" in moving
    # What stands still is the last picture: all scenes that held.
    last = [
        "".join(group.itertext())
        for group in root.iter("{http://www.w3.org/2000/svg}g")
        if "past" not in (group.get("class") or "")
    ]
    assert sum(line.startswith("✓") for line in last) == len(SCENES)
    assert not re.search(r"(?:src|href)=|url\(|@import", picture)


def test_every_row_is_seen_at_its_time_and_at_no_other() -> None:
    telling = scene_of("meet")
    recorder = Recorder(Drawing(40, 12))
    anyio.run(recorder.show, telling)
    telling.cast.now = 0.0
    anyio.run(recorder.pace, 2.0)
    times = [frame.at for frame in recorder.frames]
    assert times == sorted(times)
    assert times[0] == 0.0
    telling.cast.begin()
    recorder.take()
    picture = recorder.svg("x")
    rules = re.findall(r"@keyframes (k\d+)\{(.*?)\}\.", picture)
    assert rules
    assert {name for name, _ in rules} == set(re.findall(r'class="(k\d+)', picture))


def test_the_recording_in_the_readme_is_what_the_script_would_make_now(told: tuple[Telling, dict[str, Recorder]]) -> None:
    stable = the_script().stable
    for name, recorder in told[1].items():
        path = ROOT / "docs" / name
        assert stable(path.read_text(encoding="utf-8")) == stable(recorder.svg("")), "run python docs/make_demo.py"
        assert path.stat().st_size < 150_000


# -- the page, and a browser -----------------------------------------------------------------------------------------------


def test_the_page_shows_what_failed_too(tmp_path: Path) -> None:
    telling = scene_of("refuse")
    telling.run.steps["refuse"].outcome, telling.run.steps["refuse"].detail = "failed", "no <answer>"
    recorder = Recorder(Drawing())
    anyio.run(recorder.show, telling)
    recorder.take()
    assert '<p class="seen failed">no &lt;answer&gt;</p>' in page(telling, recorder)


posix = pytest.mark.skipif(os.name != "posix", reason="shells and terminals of POSIX")


@posix
def test_without_a_screen_no_browser_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("a browser was started"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert command.open_page(tmp_path / "story.html") is False


@posix
def test_a_browser_is_given_the_page_and_nobody_waits_for_its_end(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    browser, told, gate = tmp_path / "browser", tmp_path / "told", tmp_path / "gate"
    os.mkfifo(gate)
    browser.write_text(f'#!/bin/sh\necho "$1" > {told}\n')
    browser.chmod(0o755)
    monkeypatch.setenv("BROWSER", f"{browser} %s")
    assert command.open_page(tmp_path / "story.html") is True
    assert told.read_text().strip() == (tmp_path / "story.html").as_uri()
    browser.write_text(f"#!/bin/sh\ncat {gate}\n")  # stays until the test lets it go
    monkeypatch.setattr(command, "_PATIENCE", 0.5)
    assert command.open_page(tmp_path / "story.html") is True
    with suppress(OSError):
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    browser.write_text("#!/bin/sh\nexit 1\n")
    monkeypatch.setattr(command, "_PATIENCE", 5.0)
    assert command.open_page(tmp_path / "story.html") is False


# -- on a terminal ---------------------------------------------------------------------------------------------------------


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
def on_a_terminal(tmp_path: Path, *arguments: str, rows: int = 24, columns: int = 80, **environment: str) -> Iterator[Terminal]:
    import pty

    pid, device = pty.fork()
    if pid == 0:  # nothing but exec: this is a copy of the test
        given = {"TERM": "xterm-256color", "TMPDIR": str(tmp_path), **environment}
        kept = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        os.execve(COMMAND[0], [*COMMAND, "demo", *arguments], kept | given)
    terminal = Terminal(pid, device)
    terminal.resize(rows, columns)
    try:
        yield terminal
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
        os.close(device)


def descendants(pid: int) -> list[Any]:
    psutil = pytest.importorskip("psutil")
    found: list[Any] = psutil.Process(pid).children(recursive=True)
    return found


def all_ended(processes: list[Any]) -> bool:
    psutil = pytest.importorskip("psutil")
    _, alive = psutil.wait_procs(processes, timeout=BOUND / 2)
    return not alive


def is_sane(output: bytes) -> bool:
    """True if the other screen was left, and the cursor is there again."""
    return (
        output.rfind(b"\x1b[?1049l") > output.rfind(b"\x1b[?1049h") >= 0
        and output.rfind(b"\x1b[?25h") > output.rfind(b"\x1b[?25l") >= 0
    )


@posix
@pytest.mark.parametrize(
    ("stop", "status"),
    [
        (lambda terminal: os.write(terminal.device, b"\x03"), 130),
        (lambda terminal: os.kill(terminal.pid, signal.SIGTERM), 128 + signal.SIGTERM),
    ],
    ids=["ctrl-c", "sigterm"],
)
def test_who_stops_the_story_gets_the_terminal_back_and_no_process_is_left(
    stop: Callable[[Terminal], object], status: int, tmp_path: Path
) -> None:
    import termios

    with on_a_terminal(tmp_path) as terminal:
        before = termios.tcgetattr(terminal.device)
        terminal.until("has a typed answer")
        processes = descendants(terminal.pid)
        assert len(processes) >= 3
        stop(terminal)
        assert terminal.ended() == status
        assert all_ended(processes)
        assert is_sane(bytes(terminal.output))
        assert termios.tcgetattr(terminal.device) == before
        assert b"Traceback" not in terminal.output
        assert list(tmp_path.iterdir()) == []


@posix
def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path) as terminal:
        terminal.until("has a typed answer")
        processes = descendants(terminal.pid)
        os.kill(terminal.pid, signal.SIGKILL)
        assert all_ended(processes)


@posix
def test_the_picture_follows_the_size_of_the_terminal(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path) as terminal:
        terminal.until("─" * 80)
        terminal.resize(20, 40)
        rule = re.compile("(?<!─)(?:─){40}(?!─)".encode())
        while (narrow := rule.search(terminal.output)) is None:  # what was drawn before is read late on a busy machine
            assert terminal.read()
        os.write(terminal.device, b"\x03")
        assert terminal.ended() == 130
        assert "─".encode() * 41 not in terminal.output[narrow.start() :]


@posix
def test_without_colours_nothing_is_coloured(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, NO_COLOR="1") as terminal:
        terminal.until("Two programs and one URL")
        os.write(terminal.device, b"\x03")
        assert terminal.ended() == 130
        assert not re.search(rb"\x1b\[[\d;]*\b(?:3[0-7]|9[0-7]|38;)[\d;]*m", bytes(terminal.output))


@posix
def test_a_dumb_terminal_gets_lines(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, TERM="dumb") as terminal:
        terminal.until("Two programs and one URL")
        os.write(terminal.device, b"\x03")
        assert terminal.ended() == 130
        assert b"\x1b[?1049h" not in terminal.output


def test_force_color_makes_no_terminal_of_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    console = Console(force_terminal=True)
    assert console.is_terminal
    assert not can_draw(console)


# -- the matrix ------------------------------------------------------------------------------------------------------------


async def _never(run: RowRun, workshop: Any) -> None:
    """Not played here."""


def test_progress_says_how_much_is_done_and_how_long_the_rest_will_take() -> None:
    runs = [RowRun.of(DemoRow("ubre", "", f"wire{number}", ("one", "two"), _never)) for number in range(4)]
    now = 100.0
    progress = Progress(runs, clock=lambda: now)
    assert progress.share == 0
    assert progress.line() == "0 of 4 wires, 0 s"
    runs[0].ended_at = 110.0
    runs[1].steps["one"].seconds = 0.5
    now = 130.0
    assert progress.share == 3 / 8
    assert progress.line() == "1 of 4 wires, 30 s, about 50 s left"
    for row in runs:
        row.ended_at = 140.0
    assert progress.left() == ""


def test_progress_of_the_whole_matrix_fits_a_small_terminal() -> None:
    runs = [RowRun.of(row) for row in all_rows()]
    for row in runs[:20]:
        first, second, *_ = row.steps.values()
        first.outcome, first.detail, second.outcome = "failed", "far from it " * 20, "running"
    paper = Console(width=80, height=24, file=io.StringIO(), record=True)
    paper.print(Progress(runs).picture())
    lines = paper.export_text().splitlines()
    assert len(lines) < 24
    assert max(map(len, lines)) <= 80


def test_in_a_pipe_each_wire_is_told_when_it_has_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--only", "memory,binary"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^ubre binary memory: (\d+) of \1 steps held in [\d.]+ s \(1 of 1 wire, \d+ s\)$", out, re.M)


@posix
def test_ctrl_c_ends_the_matrix_too(tmp_path: Path) -> None:
    with on_a_terminal(tmp_path, "--only", "tcp,json") as terminal:
        terminal.until("of 2 wires")
        while len(processes := descendants(terminal.pid)) < 2:
            assert terminal.read()
        os.write(terminal.device, b"\x03")
        assert terminal.ended() == 130
        assert all_ended(processes)
        assert terminal.output.rfind(b"\x1b[?25h") > terminal.output.rfind(b"\x1b[?25l")
