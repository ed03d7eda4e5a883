"""The story, scene by scene: its events, the code, and why it matters."""

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
"""Server and client; a bridge, and a vehicle with another protocol."""
_SCENE_SECONDS = 4 * TIMEOUT
_LEVEL = r"^Tank\(number=7, litres=73\.5\)$"
_FILLED = r"Tank\(number=7, litres=93\.5\)$"


class NotHere(Exception):
    """A scene cannot be played on this machine; the text has the reason."""


def path_of(program: str) -> Path:
    """File of a program: the shown code is the running code."""
    return Path(__file__).with_name(f"{program}.py")


@frozen
class Excerpt:
    """Lines of a program: from the first that contains a text up to the next empty one, or a number of lines."""

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
    """Returns its result as a line, or raises CheckFailed."""
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
    """A performance of the story, and its results."""

    cast: Cast
    seen: dict[str, SceneOutcome] = field(factory=lambda: {scene.name: SceneOutcome() for scene in SCENES})
    traffic: dict[str, int] = field(factory=dict)
    """Messages by kind, frames and bytes, recorded by the first desk and the gate. Empty without a recording."""

    @property
    def ok(self) -> bool:
        """True if every scene that this machine can play succeeded."""
        return all(seen.outcome in ("ok", "not here") for seen in self.seen.values())

    async def play(self, scene: Scene) -> SceneOutcome:
        """Play a scene within its time, and note the result. Raises nothing except cancellation."""
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
    "One serves, the other connects. No broker, no code generator, nothing else.",
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
    "A question has a typed answer",
    "The answer is a Tank for mypy before it runs, and for the bus when it does.",
    Excerpt("plant", '@bus.handle("tank.level")'),
    Excerpt("desk", "async def ask"),
)
async def ask(telling: Telling) -> str:
    return [await _level(telling.cast, desk) for desk in DESKS][-1]


async def _level(cast: Cast, desk: str) -> str:
    await cast.tell(desk, "ask")
    return (await cast.hears(desk, _LEVEL)).text


@scene(
    "What is published reaches every subscriber",
    "Ann fills a tank, the plant publishes it, and both desks hear of it.",
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
    "A stream is held back by its reader",
    "A million readings are there. Ann takes three, and the handler is stopped.",
    Excerpt("desk", "async def read"),
)
async def stream(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "read")
    await cast.hears("ann", r"^read as far as 75\.5$")
    stopped = await cast.hears("plant", r"^log: stopped after \d+ of 1,000,000 readings$")
    made = int(stopped.text.split()[3])
    if made >= 1000:
        raise CheckFailed(f"the plant has made {made} readings for one who wanted 3")
    return f"3 of 1,000,000 readings wanted, {made} made"


@scene(
    "A mistake is answered at once, with its place",
    "The caller is told which part is wrong. With nats-py, FastStream or python-socketio it is a timeout.",
    Excerpt("desk", "async def mistake"),
)
async def refuse(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "mistake")
    said = await cast.hears("ann", r"\$\.litres")
    return said.text.partition(": ")[2] or said.text


@scene(
    "The server is killed in the middle of a request",
    "She is told at once that no answer will come. With nats-py or python-socketio she would wait for 90 s.",
    Excerpt("desk", "async def wait"),
)
async def kill(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "wait")
    await cast.hears("plant", "^cleaning begins$")
    await cast.kill_plant()
    said = await cast.hears("ann", "^Disconnected: ")
    for desk in DESKS:
        await cast.hears(desk, "^link down")
    return f"told after {said.ms or 0:.0f} ms, not after the 90 s of the timeout"


@scene(
    "It is back, and so are the subscriptions",
    "The links dial again by themselves. Nobody has subscribed a second time.",
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
    return f"nobody subscribed again, and both {said.partition(' Tank')[0]}"


@scene(
    "A deploy in the middle of work, and nothing fails",
    "SIGTERM drains: what runs is answered. What comes next waits for the next plant.",
    Excerpt("desk", "async def work"),
)
async def replace(telling: Telling) -> str:
    cast = telling.cast
    await cast.tell("ann", "work")
    await cast.hears("plant", "^cleaning begins$")
    cast.drain_plant()
    await cast.hears("ann", "^this plant: clean$")
    await cast.ended("plant")
    await cast.open_plant()
    await cast.hears("ann", _LEVEL.replace("^", "^the next one: "))
    for desk in DESKS:
        await cast.hears(desk, "^link up again$")
    return "2 asked, 2 answered: one by the old plant, one by the new"


@scene(
    "A vehicle of another protocol, over Zenoh",
    "It speaks UMessage, numbers for names, and has no server. A bridge lets it in.",
    Excerpt("gate", "ROUTES = (", 4),
    Excerpt("van", "filled = await", 1),
)
async def van(telling: Telling) -> str:
    cast = telling.cast
    if find_spec("zenoh") is None:
        raise NotHere("no vehicle can come, Zenoh is not installed: pip install 'polybus[zenoh]'")
    cast.note(f"a fabric at {(fabric := await cast.open_gate())}")
    await cast.open_van(fabric)
    await cast.hears("van", f"^filled {_FILLED}")
    said = await cast.hears("van", f"^heard //plant/CD/1/80CD {_FILLED}")
    await _heard_by_both(cast)
    await cast.ended("van")
    await cast.close("gate")
    return f"asked, answered and told over Zenoh: the van {said.text}"


@scene(
    "All of it was recorded",
    "Every frame of a link, both directions: to be counted, replayed and analysed.",
    Excerpt("desk", "async with connect(", 1),
)
async def count(telling: Telling) -> str:
    cast = telling.cast
    for desk in DESKS:
        await cast.close(desk)
    cast.drain_plant()
    await cast.ended("plant")
    if cast.record is None:
        raise NotHere("nothing was recorded: pip install 'polybus[capture]'")
    telling.traffic = counted = await anyio.to_thread.run_sync(_traffic, cast.record)
    # The first desk and the van hear the consequences of the van's actions.
    expected = {"refused": 1, "publications": 4 if telling.seen["van"].outcome == "ok" else 2}
    if not expected.items() <= counted.items():
        raise CheckFailed(f"the recording says {counted}, and not {expected}")
    if not counted["unanswered"]:
        raise CheckFailed("the request that was running when the plant was killed has an answer in the recording")
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
        "of streams": sum(kinds[kind] for kind in ("stream", "item", "end", "cancel", "control")),
        "frames": found.frames,
        "bytes": found.frame_bytes,
    }


SCENES: tuple[Scene, ...] = (meet, ask, publish, stream, refuse, kill, back, replace, van, count)
