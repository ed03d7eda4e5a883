"""Writes what pages take from the program or from a file, between their ``<!-- made: ... -->`` and ``<!-- end -->``.

``python docs/make_reference.py`` writes the pages; a test compares them with what this would write.
"""

from __future__ import annotations

import datetime
import enum
import functools
import math
import re
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import anyio
import pyarrow as pa
from attrs import frozen

from polybus import Bus, EncodeError, connect
from polybus.analysis.report.tables import METRICS
from polybus.capture import schema
from polybus.cli.app import command as make_command
from polybus.plugins import Capabilities, ProtocolFeatures
from polybus.protocols import Csb, Jrep, Nats, Ubre, Up, UProtocol
from polybus.testing import NatsEngine, pair

FOLDER = Path(__file__).parent / "reference"

# -- the command line --------------------------------------------------------------------------------------------------------


COMMON = 3
"""A row that so many sections would repeat stands once, before them."""


def commands() -> str:
    """Every command and option that there is; what many commands take comes first."""
    found = {name: command for name, command in _commands(make_command()) if not command.hidden}
    rows = {name: [row for each in command.params for row in _rows(each)] for name, command in found.items()}
    shared = _shared(rows.values())
    head = ["## Common options", "", *shared, ""]
    return "\n".join([*head, *(_section(name, command, rows[name], shared) for name, command in found.items())])


def _shared(tables: Iterable[list[str]], least: int = COMMON) -> list[str]:
    """The rows that several tables have, one for each name: an option, or a column."""
    shared: dict[str, str] = {}
    for row, count in Counter(row for rows in tables for row in rows).most_common():
        name = _name(row).strip("`").split()[0]
        if count >= least and not name.isupper():  # URL is another thing in each command
            shared.setdefault(name, row)
    return [*shared.values()]


def _name(row: str) -> str:
    """The name of an option or a column, as code."""
    return f"`{row.split('`')[1]}`"


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """All commands with their whole names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _section(name: str, command: Any, rows: list[str], shared: list[str]) -> str:
    usage = " ".join((f"polybus {name}", *_usage(command)))
    lines = [f"## polybus {name}", "", " ".join(command.help.split()), "", "```text", usage, "```", ""]
    if own := [row for row in rows if row not in shared]:
        lines += [*own, ""]
    if common := [row for row in shared if row in rows]:
        lines += [f"[Common options](#common-options): {_names(common)}.", ""]
    return "\n".join(lines)


def _usage(command: Any) -> Iterator[str]:
    if any(parameter.param_type_name == "option" for parameter in command.params):
        yield "[OPTIONS]"
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            yield (name if parameter.required else f"[{name}]") + ("" if parameter.nargs == 1 else "...")


def _rows(parameter: Any) -> Iterator[str]:
    if getattr(parameter, "hidden", False):
        return
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
    else:
        metavar = "" if parameter.is_flag else f" {parameter.metavar or ''}".rstrip()
        name = ", ".join(parameter.opts) + metavar
    unset = parameter.default is None or parameter.default in (False, "", ()) or callable(parameter.default)
    given = "" if unset else f" (default `{parameter.default}`)"
    if parameter.required and parameter.param_type_name == "option":
        given = " (required)"
    yield f"* `{name}`{given}: {' '.join((parameter.help or '').split())}"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- protocols and their features ---------------------------------------------------------------------------------------------


Cell = Callable[[Capabilities], str]


def _when(condition: Callable[[Capabilities], bool]) -> Cell:
    return lambda wire: "yes" if condition(wire) else "–"


ROWS: tuple[tuple[str, Cell, Cell], ...] = (
    ("request and reply", lambda wire: "yes", lambda wire: "yes"),
    ("notify", lambda wire: "yes", lambda wire: "yes"),
    ("notify an address behind a peer", _when(lambda wire: wire.destinations), _when(lambda wire: wire.destinations)),
    ("publish", _when(lambda wire: wire.publish and not wire.asks_before_publishing), _when(lambda wire: True)),
    (
        "subscribe to exact subjects",
        lambda wire: "–" if wire.asks_before_publishing else "yes" if wire.subscribe else "it gets every publication",
        _when(lambda wire: True),
    ),
    (
        "subscribe with wildcards",
        _when(lambda wire: wire.patterns and not wire.asks_before_publishing),
        _when(lambda wire: wire.patterns or wire.extensions or not wire.subscribe),
    ),
    (
        "subscribe to one peer, also one that dialled in",
        lambda wire: (
            "–"
            if wire.asks_before_publishing
            else "yes"
            if wire.patterns
            else "exact subjects"
            if wire.subscribe
            else "it sends all"
        ),
        _when(lambda wire: True),
    ),
    ("stream, channel", _when(lambda wire: False), _when(lambda wire: wire.extensions)),
    ("a cancel stops the handler", _when(lambda wire: False), _when(lambda wire: wire.extensions)),
    ("a deadline travels with the request", lambda wire: "sent" if wire.deadlines else "–", _when(lambda wire: wire.deadlines)),
    (
        "headers",
        lambda wire: "sent" if wire.headers and not wire.asks_before_headers else ", ".join(sorted(wire.own_headers)) or "–",
        _when(lambda wire: wire.headers or bool(wire.own_headers)),
    ),
    (
        "headers of the answer",
        lambda wire: "sent" if wire.headers and wire.answer_headers and not wire.asks_before_headers else "–",
        _when(lambda wire: wire.headers and wire.answer_headers),
    ),
    ("numbers as subjects", _when(lambda wire: wire.numbers), _when(lambda wire: wire.numbers)),
    ("several peers on one connection", _when(lambda wire: wire.many_peers), _when(lambda wire: wire.many_peers)),
)


def _both(bare: str, ours: str) -> str:
    return ours if bare == ours else "polybus only" if bare == "–" else f"yes ({bare})"


def features() -> str:
    """What each protocol that there is can carry."""
    adapters = {adapter.name: adapter for adapter in (Csb(), Jrep(), Nats(), Ubre(), Up(), UProtocol())}
    wires = {name: adapter.session("client").capabilities for name, adapter in adapters.items()}
    lines = ["| | " + " | ".join(wires) + " |", "| --- |" + " --- |" * len(wires)]
    for title, bare, ours in ROWS:
        cells = " | ".join(_both(bare(wire), ours(wire)) for wire in wires.values())
        lines.append(f"| {title} | {cells} |")
    fabrics = " | ".join("yes" if ProtocolFeatures.of(adapter).fabric is not None else "–" for adapter in adapters.values())
    lines.append(f"| over Zenoh, where only what is subscribed comes, wildcards too | {fabrics} |")
    stored = " | ".join("yes" if name == "nats" else "asked" for name in wires)
    lines.append(f"| stored publications, durable handlers | {stored} |")
    return "\n".join(lines)


# -- the tables of captures ---------------------------------------------------------------------------------------------------


COLUMN_TABLE = ("| column | type | meaning |", "| --- | --- | --- |")


TABLES = {"frames": schema.FRAMES, "events": schema.EVENTS, "quarantine": schema.QUARANTINE, "exchanges": schema.EXCHANGES}


def columns_of(table: str) -> str:
    """The columns of a table, without those that an earlier table on the page explains."""
    rows, lines = _columns(TABLES[table]), list[str]()
    for earlier in TABLES:
        if earlier == table:
            break
        if seen := [row for row in rows if row in _columns(TABLES[earlier])]:
            lines += ["", f"As in [{earlier}](#{earlier}): {_names(seen)}."]
            rows = [row for row in rows if row not in seen]
    return "\n".join([*COLUMN_TABLE, *rows, *lines])


def _columns(columns: pa.Schema) -> list[str]:
    rows = []
    for column in columns:
        meaning = _cell((column.metadata or {})[b"doc"].decode()).replace("<", "&lt;")
        rows.append(f"| `{column.name}` | {_cell(str(column.type)).replace('<', '&lt;')} | {meaning} |")
    return rows


def _names(rows: Iterable[str]) -> str:
    return ", ".join(map(_name, rows))


def _listed(rows: Iterable[str]) -> list[str]:
    """The rows of a table as a list, in which those that differ only in the name are one item."""
    names: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        name, kind, meaning = (each.strip() for each in row.strip("|").split("|"))
        names.setdefault((kind, meaning), []).append(name)
    return [f"* {', '.join(found)} ({kind}): {meaning}" for (kind, meaning), found in names.items()]


def metrics() -> str:
    """The tables of metrics; columns of many tables come first."""
    tables = {name: _columns(columns) for name, (_, columns) in METRICS.items()}
    shared = _shared(tables.values(), 2)
    parts = ["\n".join(["### Common columns", "", *_listed(shared)])]
    for name, (doc, _) in METRICS.items():
        lines = [f"### metrics/{name}", "", doc]
        if common := [row for row in tables[name] if row in shared]:
            lines += ["", f"[Common columns](#common-columns): {_names(common)}."]
        if own := [row for row in tables[name] if row not in shared]:
            lines += ["", *_listed(own)]
        parts.append("\n".join(lines))
    return "\n\n".join(parts)


# -- bodies: what becomes of Python values on each wire, measured by sending them ---------------------------------------------

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
    "larger `int`": 2**53 + 1,
    "`float`": 1.5,
    "`float` without a fraction": 7.0,
    "`nan`, `inf`": math.nan,
    "`bytes` as the body": b"\xff",
    "`bytes` within a body": {"blob": b"\xff"},
    "`datetime` with a time zone": MOMENT,
    "`datetime` without a time zone": MOMENT.replace(tzinfo=None),
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


def bodies() -> str:
    """What a handler without annotations gets: wires with equal outcomes share a column, and values a row."""
    columns: dict[tuple[str, ...], list[str]] = {}
    for name, wire in WIRES.items():
        columns.setdefault(tuple(anyio.run(outcomes, wire)), []).append(name)
    rows: dict[tuple[str, ...], list[str]] = {}
    for name, row in zip(VALUES, zip(*columns, strict=True), strict=True):
        rows.setdefault(row, []).append(name)
    lines = [f"| | {' | '.join(map(', '.join, columns.values()))} |", f"| --- |{' --- |' * len(columns)}"]
    return "\n".join([*lines, *(f"| {', '.join(names)} | {' | '.join(row)} |" for row, names in rows.items())])


PARTS: dict[str, Callable[[], str]] = {
    "commands": commands,
    "features": features,
    **{name: functools.partial(columns_of, name) for name in TABLES},
    "metrics": metrics,
    "bodies": bodies,
}
PAGES = [page for page in sorted(FOLDER.parent.rglob("*.md")) if "<!-- made: " in page.read_text(encoding="utf-8")]
LANGUAGES = {".py": "python no-run serves until a signal", ".yml": "yaml", ".yaml": "yaml", ".service": "ini", ".conf": "text"}


def written(page: Path) -> str:
    """The page as it is, with its made parts as they would be made now."""
    return re.sub(
        r"(?<=<!-- made: )(\S+) -->.*?<!-- end -->",
        lambda found: f"{found[1]} -->\n\n{_part(found[1]).strip()}\n\n<!-- end -->",
        page.read_text(encoding="utf-8"),
        flags=re.DOTALL,
    )


def _part(name: str) -> str:
    """A part by its name, or a file of the repository as a block of code; a template as `polybus new shop` renders it."""
    if name in PARTS:
        return PARTS[name]()
    text = (FOLDER.parents[1] / name).read_text(encoding="utf-8")
    file = Path(name.removesuffix(".tmpl"))
    return f"```{LANGUAGES.get(file.suffix, 'text')}\n{text.replace('$name', 'shop')}```"


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")
