"""The scenes of the demo: their actions, their code, and why they matter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from time import perf_counter
from typing import Any, Literal, TypeAlias

import anyio
from attrs import define, field, frozen

from .cast import DESKS, TIMEOUT, Cast, CheckFailed

Outcome: TypeAlias = Literal["waiting", "ok", "failed", "not here"]
PROGRAMS = ("plant", "desk", "gate", "van")
_SCENE_SECONDS = 4 * TIMEOUT
_LEVEL = r"^Tank\(number=7, litres=73\.5\)$"
_FILLED = r"Tank\(number=7, litres=93\.5\)$"


class NotHere(Exception):
    """This machine cannot play a scene. The message says why."""


def path_of(program: str) -> Path:
    """Return a program's file, because the demo shows the code that it runs."""
    return Path(__file__).with_name(f"{program}.py")


@frozen
class Excerpt:
    """Lines of a program, starting at the first line that contains `begins`, up to an empty line or for `count` lines."""

    program: str
    begins: str
    count: int | None = None

    @property
    def code(self) -> str:
        lines = path_of(self.program).read_text(encoding="utf-8").splitlines()
        first = next(number for number, line in enumerate(lines) if self.begins in line)
        end = next((number for number in range(first, len(lines)) if not lines[number]), len(lines))
        return dedent("\n".join(lines[first:end][: self.count]))


@frozen
class Scene:
    name: str
    play: Callable[[Telling], Awaitable[str]] = field(repr=False)
    """Function that returns the result as a line, or raises `CheckFailed`."""
    title: str
    why: str
    code: tuple[Excerpt, ...]


def scene(title: str, why: str, *code: Excerpt) -> Callable[[Any], Scene]:
    return lambda play: Scene(play.__name__, play, title, why, code)


@define
class SceneOutcome:
    outcome: Outcome = "waiting"
    detail: str = ""
    seconds: float = 0.0


@define
class Telling:
    """A run of the demo, with its results."""

    cast: Cast
    seen: dict[str, SceneOutcome] = field(factory=lambda: {scene.name: SceneOutcome() for scene in SCENES})
    traffic: dict[str, int] = field(factory=dict)
    """Number of messages by kind, frames, and bytes recorded by the first desk and the gate. Empty if they did not record."""

    @property
    def ok(self) -> bool:
        return all(seen.outcome in ("ok", "not here") for seen in self.seen.values())

    async def play(self, scene: Scene) -> SceneOutcome:
        """Play a scene and store the result. If an error occurs, the scene has failed."""
        seen, begin = self.seen[scene.name], perf_counter()
        self.cast.lines = []
        try:
            with anyio.fail_after(_SCENE_SECONDS):
                seen.outcome, seen.detail = "ok", await scene.play(self)
        except NotHere as error:
            seen.outcome, seen.detail = "not here", str(error)
        except CheckFailed as error:
            seen.outcome, seen.detail = "failed", str(error)
        except Exception as error:
            seen.outcome, seen.detail = "failed", f"{type(error).__name__}: {error}"
        seen.seconds = perf_counter() - begin
        return seen


# -- the scenes ------------------------------------------------------------------------------------------------------------


@scene(
    "Two programs and one URL",
    "One serves, the other connects. You don't need a broker or a code generator.",
    Excerpt("plant", "run(bus"),
    Excerpt("desk", "async with connect(", 1),
)
async def meet(telling: Telling) -> str:
    cast = telling.cast
    await cast.open_plant()
    cast.note(f"serving {cast.url}")
    async with anyio.create_task_group() as group:
        for desk in DESKS:
            group.start_soon(cast.open_desk, desk)
    return f"3 processes, {cast.url}"


@scene(
    "A request gets a typed answer",
    "The answer is a Tank: mypy knows it in advance, and the bus checks it at run time.",
    Excerpt("plant", '@bus.handle("tank.level")'),
    Excerpt("desk", "async def ask"),
)
async def ask(telling: Telling) -> str:
    return [await _level(telling.cast, desk) for desk in DESKS][-1]


async def _level(cast: Cast, desk: str) -> str:
    await cast.tell(desk, "ask")
    return (await cast.hears(desk, _LEVEL)).text


@scene(
    "Publications reach every subscriber",
    "Ann fills a tank, the plant publishes it, and both desks hear about it.",
    Excerpt("plant", "await bus.publish", 1),
    Excerpt("desk", "async def listen"),
)
async def publish(telling: Telling) -> str:
    await telling.cast.tell("ann", "fill")
    return f"2 subscribers {await _heard_by_both(telling.cast)}"


async def _heard_by_both(cast: Cast) -> str:
    said = [await cast.hears(desk, rf"^heard tank\.filled {_FILLED}") for desk in DESKS]
    return said[-1].text


@scene(
    "A slow reader slows the stream down",
    "Ann reads three of a million readings and leaves. The handler had sent only a few ahead, and stops too.",
    Excerpt("desk", "async def read"),
)
async def stream(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "read")
    await cast.hears("ann", r"^read up to 75\.5$")
    stopped = await cast.hears("plant", r"^tank\.log stopped after \d+ of 1,000,000 readings$")
    made = int(stopped.text.split()[3])
    if made >= 1000:
        raise CheckFailed(f"the plant produced {made} readings, although ann read only 3")
    return f"3 of 1,000,000 readings read, {made} produced"


@scene(
    "A mistake is reported at once",
    "The error says which field is wrong. With nats-py, FastStream or python-socketio, the request times out.",
    Excerpt("desk", "async def mistake"),
)
async def refuse(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "mistake")
    said = await cast.hears("ann", r"\$\.litres")
    return said.text.partition(": ")[2] or said.text


@scene(
    "The server is killed during a request",
    "Ann's request fails at once. With nats-py or python-socketio, she would wait for the 90-second timeout.",
    Excerpt("desk", "async def wait"),
)
async def kill(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "wait")
    await cast.hears("plant", "^cleaning started$")
    await cast.kill_plant()
    said = await cast.hears("ann", "^Disconnected: ")
    for desk in DESKS:
        await cast.hears(desk, "^link down")
    return f"failed after {said.ms or 0:.0f} ms instead of the 90-second timeout"


@scene(
    "The server is back, and so are the subscriptions",
    "Both desks reconnect and subscribe again automatically.",
    Excerpt("desk", "async with connect(", 1),
    Excerpt("desk", "async with bus.subscribe", 4),
)
async def back(telling: Telling) -> str:
    cast = telling.cast
    await cast.open_plant()
    for desk in DESKS:
        await cast.hears(desk, "^link up again$")
    # Bob's answer follows his subscription, so he gets the next publication.
    await _level(cast, "bob")
    await cast.tell("ann", "fill")
    said = await _heard_by_both(cast)
    return f"without subscribing again, both desks {said.partition(' Tank')[0]}"


@scene(
    "A new version is deployed during a request",
    "On SIGTERM the plant finishes the running request. The next one waits for the new plant.",
    Excerpt("desk", "async def work"),
)
async def replace(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "work")
    await cast.hears("plant", "^cleaning started$")
    cast.drain_plant()
    await cast.hears("ann", "^this plant: clean$")
    await cast.ended("plant")
    await cast.open_plant()
    await cast.hears("ann", _LEVEL.replace("^", "^the next one: "))
    for desk in DESKS:
        await cast.hears(desk, "^link up again$")
    return "2 requests, 2 answers: one from the old plant, one from the new"


@scene(
    "A vehicle with another protocol, over Zenoh",
    "It uses UMessage, with numbers for names, and no server. A bridge connects it to the plant.",
    Excerpt("gate", "ROUTES = (", 4),
    Excerpt("van", "filled = await", 1),
)
async def van(telling: Telling) -> str:
    cast = telling.cast
    if find_spec("zenoh") is None:
        raise NotHere("Zenoh is not installed: pip install 'polybus[zenoh]'")
    cast.note(f"fabric {(fabric := await cast.open_gate())}")
    await cast.open_van(fabric)
    await cast.hears("van", f"^filled {_FILLED}")
    said = await cast.hears("van", f"^heard //plant/CD/1/80CD {_FILLED}")
    await _heard_by_both(cast)
    await cast.ended("van")
    await cast.close("gate")
    return f"request, answer and publication over Zenoh: the van {said.text}"


@scene(
    "Everything was recorded",
    "The recording has every frame in both directions, so you can count, replay and analyse them.",
    Excerpt("desk", "async with connect(", 1),
)
async def count(telling: Telling) -> str:
    cast = telling.cast
    for desk in DESKS:
        await cast.close(desk)
    cast.drain_plant()
    await cast.ended("plant")
    if cast.record is None:
        raise NotHere("recording is not installed: pip install 'polybus[capture]'")
    telling.traffic = counted = await anyio.to_thread.run_sync(_traffic, cast.record)
    # The first desk and the van also hear what the van does.
    expected = {"refused": 1, "publications": 4 if telling.seen["van"].outcome == "ok" else 2}
    if not expected.items() <= counted.items():
        raise CheckFailed(f"expected {expected} in the recording, got {counted}")
    if not counted["unanswered"]:
        raise CheckFailed("the recording has an answer to the request that was running when the plant was killed")
    return f"{counted['frames']} frames of {counted['bytes']:,} bytes, both directions"


def can_record() -> bool:
    return all(find_spec(name) is not None for name in ("pyarrow", "numpy"))


def _traffic(record: Path) -> dict[str, int]:
    from ..capture import Capture, decode, info

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
        "stream messages": sum(kinds[kind] for kind in ("stream", "item", "end", "cancel", "control")),
        "frames": found.frames,
        "bytes": found.frame_bytes,
    }


SCENES: tuple[Scene, ...] = (meet, ask, publish, stream, refuse, kill, back, replace, van, count)
