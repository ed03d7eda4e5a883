"""Writes docs/reference/bodies.md: what becomes of Python values on each wire, measured by sending them.

``python docs/make_bodies.py`` writes the file; a test compares it with what this would write.
"""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
from attrs import frozen

from polybus import Bus, EncodeError, connect
from polybus.protocols import Csb, Jrep, Nats, Ubre, Up, UProtocol
from polybus.testing import NatsEngine, pair

PAGE = Path(__file__).parent / "reference" / "bodies.md"

WIRES: dict[str, Any] = {
    "this bus itself": None,
    "UBRE": Ubre(),
    "CSB": Csb(),
    "J.REP": Jrep(),
    "J.REP `values=plain`": Jrep(values="plain"),
    "uProtocol": UProtocol(),
    "UMessage": Up(names={"take": 1}),
    "NATS": Nats(),
}
SAME: dict[str, Any] = {"UBRE": Ubre(format="binary"), "uProtocol": UProtocol(format="protobuf")}
"""Other spellings of a wire, of which a test shows that they make no difference."""


class Colour(enum.Enum):
    RED = "red"


@frozen
class User:
    id: int
    name: str


MOMENT = datetime.datetime(2026, 11, 21, 8, 0, 0, 123456, datetime.UTC)
VALUES: dict[str, Any] = {
    "`None`, `bool`, `str`, `list`, `dict[str, ...]`": {"a": None, "b": [True, "text"]},
    "`int` within ±2^53": 7,
    "`int` beyond": 2**53 + 1,
    "`float`": 1.5,
    "`float` without a fraction": 7.0,
    "`nan`, `inf`": math.nan,
    "`bytes` as the body": b"\xff",
    "`bytes` within one": {"blob": b"\xff"},
    "`datetime` with a time zone": MOMENT,
    "`datetime` without one": MOMENT.replace(tzinfo=None),
    "`date`, `time`": datetime.date(2026, 11, 21),
    "`timedelta`": datetime.timedelta(seconds=90),
    "`Decimal`": Decimal("1.10"),
    "`UUID`": uuid.UUID(int=7),
    "`Enum`": Colour.RED,
    "`tuple`": (1, 2),
    "`set`": {1, 2},
    "attrs, dataclass, msgspec, pydantic": User(7, "Ann"),
    "`dict` with numbers as keys": {1: "a"},
}

TEXT = """# Bodies

For contracts between programs that do not share classes. What a handler, or the caller of `request`, gets depends on whether it
says what it wants.

**With a type** (`async def handler(body: Report)`, `returns=Report`) it gets that type on every wire: `bytes`,
`datetime`, `Decimal`, `UUID`, sets, enums and classes arrive as they were sent. What a wire cannot carry is an
`EncodeError` at the call, with the path of the value; nothing is rounded or cut silently. The one exception is J.REP,
whose `Date` counts milliseconds (in a model of pydantic moments are text, there too). A moment whose offset from UTC has
seconds, as local times had before 1972, has no form in text: send `moment.astimezone(datetime.UTC)`.

**Without a type** it gets what the wire itself can tell apart, and there the wires differ. A program that is to run
over more than one of them names its types. What the table calls *text* is base64 for `bytes` and the usual form for
the rest: `2026-11-21T08:00:00Z`, `PT90S`, `1.10`.

**A type says what it takes**, in its own library's words, and all of that is checked: `msgspec.Meta(gt=0)`, validators of
attrs, and of pydantic and annotated-types `Field(gt=0)`, `PositiveInt`, `Len`, `AfterValidator` and the like, alone, in
containers and in the fields of any class. msgspec reads bodies, as strictly as JSON is; what has something of pydantic's in
it, and what msgspec does not know (a path, an IP address, a deque, a type alias that contains itself), pydantic reads, in its
usual mode, in which `"7"` will do for a number. A model with `strict=True` takes no text for a date, a UUID or an enum, and
text is what most wires have. What a type cannot do, such as an alias of pydantic's in a class that is no model, is a
`TypeError` when the handler is registered or the call is made.

**A model of pydantic** goes as FastAPI sends it, in its JSON form and by its aliases, unless its outermost model says
`serialize_by_alias=False`. A class that reads another alias (`validation_alias`) than it writes cannot read what it has
written. A `SecretStr` would arrive as stars, so it is an `EncodeError` until a `field_serializer` of its model, or the
sender, gives its value.

**A private field of attrs**, whose name begins with `_`, is not written, except on J.REP. So a class in which
one has no default cannot be read again from another wire: give it a default, or take the underscore away.

**An object of a subclass** of `str`, `int`, `float`, `bytes`, `list` or `dict`, an enum's member, and a number or text of numpy
are written as the value that they are; what their class makes of `str()` and `repr()` never gets into a message. The
same holds of subjects, headers and the words of errors.

A handler of the bus that asks gets a copy too, through the same encoder, as the first column says: never the caller's
own object. Each `on` handler and each subscription has a message and a body of its own, too: what one of them changes, the
others do not see.

"""

AFTER = """
UBRE is the same in JSON and in binary form, uProtocol in JSON and protobuf. Numbers of a uProtocol `Value` are
doubles, so whole numbers beyond 2^53 are refused there, rather than changed; other JSON readers (JavaScript) round
what they cannot hold, also when it comes over UBRE or CSB: send such numbers as text. `tuple` arrives as a list
everywhere. Of two keys that are one text, as in `{1: "a", "1": "b"}`, JSON has both, and who reads it the last one:
looking for such keys would cost every body more than it is worth.

How each wire writes them: [UBRE](ubre.md), [CSB](csb.md), [J.REP](jrep.md), [uProtocol](uprotocol.md),
[UMessage](up.md), [NATS](nats.md).
"""


@asynccontextmanager
async def asking(bus: Bus, wire: Any) -> AsyncIterator[Bus]:
    """Somebody who asks a bus: itself, or another one over a wire."""
    if wire is None:
        async with bus:
            yield bus
    elif isinstance(wire, Nats):
        async with NatsEngine() as engine, connect(engine.url, bus=bus), connect(engine.url) as client:
            yield client
    else:
        async with pair(bus, protocol=wire) as client:
            yield client


async def outcomes(wire: Any) -> list[str]:
    """What a handler without annotations gets of each value."""
    bus, got = Bus(), []

    @bus.handle("take")
    async def take(body: object) -> None:
        got.append(body)

    async with asking(bus, wire) as client:
        for value in VALUES.values():
            try:
                await client.request("take", value, timeout=5)
            except EncodeError:
                got.append(EncodeError)
    return [_said(sent, received) for sent, received in zip(VALUES.values(), got, strict=True)]


def _said(sent: Any, received: Any) -> str:
    if received is EncodeError:
        return "`EncodeError`"
    if type(received) is type(sent) and (received == sent or received != received):
        return "as sent"
    if isinstance(sent, datetime.datetime) and isinstance(received, datetime.datetime):
        return "`datetime`, whole ms"
    kinds = {str: "text", list: "`list`", dict: "`dict`", int: "`int`"}
    if isinstance(sent, dict):
        return "text within" if "blob" in sent else "text as keys"
    return kinds[type(received)]


def written() -> str:
    """The page."""
    columns = {name: anyio.run(outcomes, wire) for name, wire in WIRES.items()}
    lines = [f"| | {' | '.join(columns)} |", f"| --- |{' --- |' * len(columns)}"]
    for number, name in enumerate(VALUES):
        lines.append(f"| {name} | {' | '.join(column[number] for column in columns.values())} |")
    return TEXT + "\n".join(lines) + "\n" + AFTER


if __name__ == "__main__":
    PAGE.write_text(written(), encoding="utf-8")
