"""The story of `polybus demo`: told by real processes, printed as wide as there is room, and ended by Ctrl-C."""

import io
import json
import os
import re
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path

import anyio
import anyio.streams.buffered
import psutil
import pytest
from rich.console import Console

from polybus.cli.app import run
from polybus.cli.demo import Paper, tell
from polybus.demo import cast as cast_module
from polybus.demo import scenes
from polybus.demo.cast import Actor, Cast, CheckFailed, StoryLine
from polybus.demo.scenes import PROGRAMS, SCENES, Scene, Telling, path_of
from tests.support import BOUND
from tests.unit.cli.support import COMMAND, one_line

DOCS = Path(__file__).resolve().parents[3] / "docs"
NAMES = [scene.name for scene in SCENES]


def test_the_story_is_lines_in_which_every_scene_holds_and_its_picture_shows_these_scenes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["demo"]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    places = [out.index(f"{number}/{len(SCENES)} {scene.title}") for number, scene in enumerate(SCENES, start=1)]
    assert places == sorted(places)
    if find_spec("zenoh") is not None:
        assert f"{len(SCENES)} of {len(SCENES)} scenes passed" in out
    drawn = (DOCS / "demo.svg").read_text(encoding="utf-8")
    assert all(scene.title in drawn for scene in SCENES), "run python docs/make_demo.py"


def test_for_machines_it_is_json_and_the_recording_is_kept_and_without_zenoh_it_says_what_is_left_out(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(scenes, "find_spec", lambda name: None if name == "zenoh" else find_spec(name))
    command = ["demo", "--json", "--keep", str(tmp_path / "kept")]
    assert run(command) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert {scene["name"]: scene["outcome"] for scene in result["scenes"]} == dict.fromkeys(NAMES, "ok") | {"van": "not here"}
    assert "pip install 'polybus[zenoh]'" in out
    counts = result["traffic"]
    assert counts["requests"] == counts["answers"] + counts["refused"] + counts["unanswered"]
    assert (counts["refused"], counts["publications"]) == (1, 2)
    assert any((tmp_path / "kept").iterdir())
    status, text = one_line(capsys, *command)
    assert status == 2 and "the folder is not empty" in text


def test_show_prints_where_the_programs_are_and_what_is_in_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["demo", "--show"]) == 0
    out = capsys.readouterr().out.replace("\n", "").replace(" ", "")
    for program in PROGRAMS:
        assert f"#{path_of(program)}".replace(" ", "") in out
        assert "".join(path_of(program).read_text(encoding="utf-8").split()) in out


def test_a_scene_that_does_not_hold_ends_the_story_and_says_what_was_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def without_plant(telling: Telling) -> str:
        await telling.cast.kill_plant()
        monkeypatch.setattr(cast_module, "TIMEOUT", 2.0)
        return await ask.play(telling)

    ask = SCENES[1]
    killed = Scene(ask.name, without_plant, ask.title, ask.why, ask.code)
    monkeypatch.setattr("polybus.cli.demo.SCENES", [SCENES[0], killed, *SCENES[2:]])
    paper = Paper(Console(file=io.StringIO(), width=120))
    telling = anyio.run(tell, paper, tmp_path, None)
    assert not telling.ok
    assert [seen.outcome for seen in telling.seen.values()] == ["ok", "failed", *["waiting"] * (len(SCENES) - 2)]
    assert "from ann, got 'link down" in telling.seen["ask"].detail


def test_every_scene_fits_a_narrow_terminal() -> None:
    paper = Paper(Console(file=io.StringIO(), width=40))
    for scene in SCENES:
        paper.scene(scene)
    paper.line(StoryLine("ann", "Disconnected: the peer closed the connection without a reason", 1234.5))
    printed = paper.console.file.getvalue()  # type: ignore[attr-defined]
    assert max(map(len, printed.splitlines())) <= 40
    assert "Disconnected" in printed and "1,234 ms" in printed


async def test_letters_of_a_program_cannot_move_the_terminal() -> None:
    send, receive = anyio.create_memory_object_stream[bytes](1)
    async with send, receive:
        await send.send(b"Tank \x1b[2J\xc2\x9b2J\n")
        actor = Actor(None, None, anyio.streams.buffered.BufferedByteReceiveStream(receive))  # type: ignore[arg-type]
        line = await anext(actor.lines())
    assert line.startswith("Tank ") and not re.search(r"[\x00-\x1f\x7f-\x9f]", line)


async def test_a_process_that_does_not_start_is_told_with_the_end_of_its_log(tmp_path: Path) -> None:
    with anyio.fail_after(BOUND):
        async with Cast(tmp_path, lambda line: None, url="nonsense://127.0.0.1:0") as cast:
            with pytest.raises(CheckFailed, match="plant did not start: .*nonsense"):
                await cast.open_plant()


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_no_process_is_left_when_the_demo_is_ended_and_after_ctrl_c_no_file(
    number: signal.Signals, status: int, tmp_path: Path
) -> None:
    with subprocess.Popen([*COMMAND, "demo"], stdout=subprocess.PIPE, env=os.environ | {"TMPDIR": str(tmp_path)}) as demo:
        assert demo.stdout is not None
        while b"2/10" not in demo.stdout.readline():
            assert demo.poll() is None
        processes = psutil.Process(demo.pid).children(recursive=True)
        assert len(processes) >= 3
        demo.send_signal(number)
        rest = demo.stdout.read()
        assert demo.wait() == status
    assert psutil.wait_procs(processes, timeout=BOUND / 2)[1] == []
    assert b"Traceback" not in rest
    assert number == signal.SIGKILL or list(tmp_path.iterdir()) == []
