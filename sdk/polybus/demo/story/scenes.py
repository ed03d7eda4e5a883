"""The story, scene by scene: what happens, the lines that do it, and why it matters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

import anyio
from attrs import define, field, frozen

from ..play import DemoRow, NotHere, RowRun, Workshop, check
from .cast import DESKS, Cast
from .programs import Excerpt

READ, LOOK = 0.65, 0.8
"""Seconds to read the lines before they run, and to look at what came of them."""
FLIGHT = 0.3
"""Seconds in which an arrow is drawn: longer than a message takes."""
LEVEL = r"^Tank\(number=7, litres=73\.5\)$"


@frozen
class Scene:
    """One step of the story."""

    name: str
    title: str
    why: str
    code: tuple[Excerpt, ...]
    play: Callable[[Telling], Awaitable[str]] = field(repr=False)
    """Gives what was seen, in a line. CheckFailed where it does not hold."""
    read: float = READ
    """Seconds to read the lines before they run: none where processes take their time to start."""
    elsewhere: str = ""
    """The same with other libraries; see the table in the README."""


@define
class Telling:
    """The story while it is told, and afterwards."""

    cast: Cast
    run: RowRun
    scene: Scene
    seconds: float = 0.0
    """Between its begin and its end."""
    traffic: dict[str, int] = field(factory=dict)
    """Recorded by the first desk, and by the gate: messages by kind, then frames and their bytes. Empty where nothing was."""

    @property
    def number(self) -> int:
        """Of the scene, from 0."""
        return SCENES.index(self.scene)


class View(Protocol):
    """Shows the story while it is told."""

    async def show(self, telling: Telling) -> None:
        """Show that a scene has begun, or that it is over."""

    async def pace(self, seconds: float) -> None:
        """Let so much of the story's time pass: for people in real time, for machines at once."""


async def tell(run: RowRun, view: View, folder: Path, record: Path | None) -> Telling:
    """Tell the story.

    Args:
        run: Takes the outcome of each scene.
        view: Shows it.
        folder: For what the processes write on stderr.
        record: A folder that is not there yet, for the recording; None for none.
    """
    async with Cast(folder, view.pace, record) as cast:
        telling, begin = Telling(cast, run, SCENES[0]), perf_counter()
        for scene in SCENES:
            telling.scene = scene
            cast.begin()
            run.steps[scene.name].outcome = "running"
            await view.show(telling)
            await view.pace(scene.read)
            await run.step(scene.name, lambda scene=scene: scene.play(telling))  # type: ignore[misc]
            await view.show(telling)
            if run.steps[scene.name].outcome == "failed":
                break
            if scene is not SCENES[-1]:
                await view.pace(LOOK)
        telling.seconds = perf_counter() - begin
        return telling


def story_run() -> RowRun:
    """The scenes before anything has happened."""
    return RowRun.of(DemoRow("ubre", "story", "ws", tuple(scene.name for scene in SCENES), _no_row))


async def _no_row(run: RowRun, workshop: Workshop) -> None:
    """The story is told, and not played as a row of the matrix is."""


# -- the scenes ------------------------------------------------------------------------------------------------------------


async def _meet(telling: Telling) -> str:
    cast = telling.cast
    await cast.open_plant()
    cast.note(f"serving {cast.url}")
    async with anyio.create_task_group() as group:
        group.start_soon(cast.open_desk, "ann", cast.record)
        group.start_soon(cast.open_desk, "bob")
    return f"3 processes, {cast.url}"


async def _ask(telling: Telling) -> str:
    cast, said = telling.cast, ""
    for desk in DESKS:
        await cast.tell(desk, "ask", "tank.level")
        said = await cast.hears(desk, LEVEL)
        cast.show(desk, "Tank", "answer")
    await cast.pace(2 * FLIGHT)
    return said


async def _publish(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "fill", "tank.fill")
    said = await _heard_by_both(cast)
    return f"2 subscribers {said}"


async def _heard_by_both(cast: Cast) -> str:
    said = ""
    for desk in DESKS:
        said = await cast.hears(desk, r"^heard tank\.filled Tank\(number=7, litres=93\.5\)$")
        cast.show(desk, "tank.filled", "publication")
    await cast.pace(2 * FLIGHT)
    return said


async def _stream(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "read", "tank.log")
    await cast.hears("ann", r"^read as far as 75\.5$")
    cast.show("ann", "73.5 · 74.5 · 75.5", "answer")
    stopped = await cast.hears("plant", r"^log: stopped after \d+ of 1,000,000 readings$")
    made = int(stopped.split()[3])
    check(made < 1000, f"the plant has made {made} readings for one who wanted 3")
    await cast.pace(2 * FLIGHT)
    return f"3 of 1,000,000 readings wanted, {made} made"


async def _mistake(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "mistake", "tank.fill")
    said = await cast.hears("ann", r"\$\.litres")
    cast.show("ann", "BadRequest", "failure")
    await cast.pace(2 * FLIGHT)
    return said.partition(": ")[2] or said


async def _kill(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "wait", "tank.clean")
    await cast.hears("plant", "^cleaning begins$")
    await cast.pace(2 * FLIGHT)
    await cast.kill_plant()
    said = await cast.hears("ann", "^Disconnected: ")
    ms = next(line.ms for line in cast.lines if line.text == said)
    cast.show("ann", "Disconnected", "failure")
    for desk in DESKS:
        await cast.hears(desk, "^link down")
    await cast.pace(FLIGHT)
    return f"told after {ms:.0f} ms, not after the 90 s of the timeout"


async def _return(telling: Telling) -> str:
    cast = telling.cast
    await cast.open_plant()
    for desk in DESKS:
        await cast.hears(desk, "^link up again$")
    # His answer comes after his subscription has been heard: what is published next, he gets.
    await cast.tell("bob", "ask", "tank.level")
    await cast.hears("bob", LEVEL)
    cast.show("bob", "Tank", "answer")
    await cast.pace(2 * FLIGHT)
    await cast.tell("ann", "fill", "tank.fill")
    said = await _heard_by_both(cast)
    return f"nobody subscribed again, and both {said.partition(' Tank')[0]}"


async def _replace(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "work", "tank.clean")
    await cast.hears("plant", "^cleaning begins$")
    cast.drain_plant()
    await cast.hears("ann", "^this plant: clean$")
    cast.show("ann", "clean", "answer")
    await cast.ended("plant")
    await cast.pace(2 * FLIGHT)
    cast.show("ann", "tank.level", "ask")
    await cast.open_plant()
    await cast.hears("ann", r"^the next one: Tank\(number=7, litres=73\.5\)$")
    cast.show("ann", "Tank", "answer")
    for desk in DESKS:
        await cast.hears(desk, "^link up again$")
    await cast.pace(2 * FLIGHT)
    return "2 asked, 2 answered: one by the old plant, one by the new"


async def _van(telling: Telling) -> str:
    cast = telling.cast
    if find_spec("zenoh") is None:
        raise NotHere("no vehicle can come, Zenoh is not installed: pip install 'polybus[zenoh]'")
    cast.note(f"a fabric at {(fabric := await cast.open_gate(cast.record))}")
    await cast.open_van(fabric)
    await cast.hears("van", r"^filled Tank\(number=7, litres=93\.5\)$")
    said = await cast.hears("van", r"^heard //plant/CD/1/80CD Tank\(number=7, litres=93\.5\)$")
    await _heard_by_both(cast)
    await cast.ended("van")
    await cast.close_gate()
    return f"asked, answered and told over Zenoh: the van {said}"


async def _count(telling: Telling) -> str:
    cast = telling.cast
    for desk in DESKS:
        await cast.close_desk(desk)
    cast.drain_plant()
    await cast.ended("plant")
    if cast.record is None:
        raise NotHere("nothing was recorded: pip install 'polybus[capture]'")
    telling.traffic = counted = await anyio.to_thread.run_sync(_traffic, cast.record)
    # What the van has caused is heard by the first desk, and by the van.
    expected = {"refused": 1, "publications": 4 if telling.run.steps["van"].outcome == "ok" else 2}
    check(expected.items() <= counted.items(), f"the recording says {counted}, and not {expected}")
    check(counted["unanswered"] > 0, "the request that was running when the plant was killed has an answer in the recording")
    return f"{counted['frames']} frames of {counted['bytes']:,} bytes, both directions"


def can_record() -> bool:
    """True where recordings can be made, and read."""
    return all(find_spec(name) is not None for name in ("pyarrow", "numpy"))


def _traffic(record: Path) -> dict[str, int]:
    from ...capture import Capture, decode, info

    kinds: Counter[str] = Counter()
    for batch in Capture(record).batches():
        events: Any = decode(batch.rows).events
        for kind, code in zip(events.column("kind").to_pylist(), events.column("code").to_pylist(), strict=True):
            kinds["refusal" if kind == "response" and code else kind] += 1
    found = info(Capture(record))
    return {
        "requests": kinds["request"],
        "answers": kinds["response"],
        "refused": kinds["refusal"],
        "unanswered": kinds["request"] - kinds["response"] - kinds["refusal"],
        "publications": kinds["publish"],
        "of streams": sum(kinds[kind] for kind in ("stream", "item", "end", "cancel", "control")),
        "frames": found.frames,
        "bytes": found.frame_bytes,
    }


SCENES = (
    Scene(
        "meet",
        "Two programs and one URL",
        "One serves, the other connects. No broker, no code generator, nothing else.",
        (Excerpt("plant", "run(bus"), Excerpt("desk", "async with connect(", 1)),
        _meet,
        read=0.1,
    ),
    Scene(
        "ask",
        "A question has a typed answer",
        "The answer is a Tank for mypy before it runs, and for the bus when it does.",
        (Excerpt("plant", '@bus.handle("tank.level")'), Excerpt("desk", "async def ask")),
        _ask,
    ),
    Scene(
        "publish",
        "What is published reaches every subscriber",
        "Ann fills a tank, the plant publishes it, and both desks hear of it.",
        (Excerpt("plant", "await bus.publish", 1), Excerpt("desk", "async def listen")),
        _publish,
    ),
    Scene(
        "stream",
        "A stream is held back by its reader",
        "A million readings are there. Ann takes three, and the handler is stopped.",
        (Excerpt("desk", "async def read"),),
        _stream,
    ),
    Scene(
        "refuse",
        "A mistake is answered at once, with its place",
        "The body never reaches the handler. The caller is told which part is wrong.",
        (Excerpt("desk", "async def mistake"),),
        _mistake,
        elsewhere="nats-py, FastStream, python-socketio: a handler that fails is a timeout",
    ),
    Scene(
        "kill",
        "The server is killed in the middle of a request",
        "Ann would wait 90 s for her answer. She is told at once that none will come.",
        (Excerpt("desk", "async def wait"),),
        _kill,
        elsewhere="nats-py and python-socketio: she would wait until her timeout",
    ),
    Scene(
        "return",
        "It is back, and so are the subscriptions",
        "The links dial again by themselves. Nobody has subscribed a second time.",
        (Excerpt("desk", "async with connect(", 1), Excerpt("desk", "async with bus.subscribe", 4)),
        _return,
        read=0.1,
    ),
    Scene(
        "replace",
        "A deploy in the middle of work, and nothing fails",
        "SIGTERM drains: what runs is answered. What comes next waits for the next plant.",
        (Excerpt("desk", "async def work"),),
        _replace,
        read=0.1,
    ),
    Scene(
        "van",
        "A vehicle of another protocol, over Zenoh",
        "It speaks UMessage, numbers for names, and has no server. A bridge lets it in.",
        (Excerpt("gate", "ROUTES = (", 4), Excerpt("van", "filled = await", 1)),
        _van,
        read=0.1,
    ),
    Scene(
        "count",
        "All of it was recorded",
        "Every frame of a link, both directions: to be counted, replayed and analysed.",
        (Excerpt("desk", "async with connect(", 1),),
        _count,
    ),
)
