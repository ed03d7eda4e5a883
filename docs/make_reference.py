"""Writes what the reference takes from the program itself: pages of docs/reference.

``python docs/make_reference.py`` writes the files; a test compares them with what this would write.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from polybus.analysis.report.metric_tables import METRICS
from polybus.capture import schema
from polybus.cli.app import command as make_command
from polybus.plugins import Capabilities, ProtocolFeatures
from polybus.plugins.registry import _PROTOCOLS, find_protocol

FOLDER = Path(__file__).parent / "reference"

# -- the command line --------------------------------------------------------------------------------------------------------

COMMAND_LINE = """# Command line

For a shell: every command and its options. `pip install 'polybus[cli]'` brings the command `polybus`; `python -m polybus` is
the same. Without arguments it shows what there is.

| exit status | meaning |
| --- | --- |
| 0 | success; also Ctrl-C or SIGTERM for `subscribe`, `stream`, `serve`, `broker` and `bridge`, whose orderly end that is |
| 1 | the peer said no, or was not there, or what it sent is not right; also a capture that is not there, none, or damaged |
| 2 | wrong usage; also an app that cannot be imported |
| 130 | Ctrl-C for every other command |

Errors are one line on stderr that says what to do next. `serve` logs to stderr, see [logs](logs.md); where it serves stands on
stdout. With `--json`, and where the output is no terminal, answers are JSON for machines. A reader that leaves early
(`| head -1`) is no failure. `NO_COLOR` is heeded. `polybus --install-completion` teaches your shell to complete commands and
options.

A URL is `protocol+transport://address`, see [URLs](index.md#urls). BODY is JSON; `-` reads it from stdin. Text needs its own
quotes: `polybus request URL greet '"Ann"'`.

```sh
polybus serve app:bus ubre+ws://127.0.0.1:8000/bus   # the Bus named bus in app.py, until Ctrl-C
polybus request ubre+ws://127.0.0.1:8000/bus user.get '{"id": 7}' --timeout 2
polybus stream ubre+ws://127.0.0.1:8000/bus log.tail '{"n": 10}' --count 100
polybus subscribe ubre+ws://127.0.0.1:8000/bus 'news.>' --count 10 --json
polybus serve app:bus ubre+ws://127.0.0.1:8000/bus --relay 'news.>' \\
    --reload --log-level debug                       # while you develop
polybus doctor ubre+wss://bus.example.org/bus --ca ca.pem \\
    --header 'authorization: Bearer TOKEN'
polybus inspect frames.bin --protocol 'ubre?format=binary' --frames lengths
```
"""


def command_line() -> str:
    """The page, with every command and option that there is."""
    sections = [_section(name, command) for name, command in _commands(make_command()) if not command.hidden]
    return "\n".join((COMMAND_LINE, *sections))


def _commands(group: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """All commands with their whole names."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def _section(name: str, command: Any) -> str:
    usage = " ".join((f"polybus {name}", *_usage(command)))
    lines = [f"## polybus {name}", "", " ".join(command.help.split()), "", "```text", usage, "```", ""]
    rows = [row for parameter in command.params if not getattr(parameter, "hidden", False) for row in _rows(parameter)]
    if rows:
        lines += ["| argument or option | default | meaning |", "| --- | --- | --- |", *rows, ""]
    return "\n".join(lines)


def _usage(command: Any) -> Iterator[str]:
    if any(parameter.param_type_name == "option" for parameter in command.params):
        yield "[OPTIONS]"
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            name = parameter.metavar or parameter.name.upper()
            yield name if parameter.required else f"[{name.strip('[]')}]"


def _rows(parameter: Any) -> Iterator[str]:
    if parameter.param_type_name == "argument":
        name = f"`{(parameter.metavar or parameter.name.upper()).strip('[]')}`"
    else:
        metavar = "" if parameter.is_flag else f" {parameter.metavar or ''}".rstrip()
        name = f"`{', '.join(parameter.opts)}{metavar}`"
    unset = parameter.default is None or parameter.default in (False, "", ()) or callable(parameter.default)
    default = "required" if parameter.required else "" if unset else f"`{parameter.default}`"
    yield f"| {_cell(name)} | {default} | {_cell(parameter.help or '')} |"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


# -- protocols and their features ---------------------------------------------------------------------------------------------

FEATURES = """# What each protocol can carry

For whoever has to talk to a program that is not polybus. A *bare* peer is a program of that protocol which is not polybus.
Between two polybus programs more is possible, as they agree on extensions. What a wire or a bare peer cannot carry raises
`Unsupported`; nothing is lost in silence. This table is made from the `Capabilities` that each protocol declares, with its
default options.

"""

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
    """The page, with every protocol that there is."""
    wires = {name: find_protocol(name, {}).session("client").capabilities for name in _PROTOCOLS}
    lines = ["| | " + " | ".join(wires) + " |", "| --- |" + " --- |" * len(wires)]
    for title, bare, ours in ROWS:
        cells = " | ".join(_both(bare(wire), ours(wire)) for wire in wires.values())
        lines.append(f"| {title} | {cells} |")
    fabrics = " | ".join("yes" if ProtocolFeatures.of(find_protocol(name, {})).fabric is not None else "–" for name in wires)
    lines.append(f"| over Zenoh, where only what is subscribed comes, wildcards too | {fabrics} |")
    stored = " | ".join("yes" if name == "nats" else "asked" for name in wires)
    lines.append(f"| stored publications, durable handlers | {stored} |")
    notes = (
        '"polybus only": with a bare peer it is `Unsupported`. "sent": it is written, and a bare peer may ignore it. Headers',
        "that a handler sets for its answer are left out where the wire has none. Stored publications are those of",
        "[stores](../how-to/stores.md) in a cluster, and over a link to a NATS network of",
        '[streams of others](../how-to/nats.md#streams-of-others). "asked": a durable handler asks who is behind that wire, or',
        "a bridge: its answer acknowledges, its error is another attempt; see",
        "[what is stored](../how-to/stores.md#read-what-is-stored). What the verbs promise is the same for all: see",
        "[delivery promises](../explanation/delivery.md).",
    )
    return FEATURES + "\n".join((*lines, "", *notes, ""))


# -- the tables of captures ---------------------------------------------------------------------------------------------------

CAPTURES = """# Captures

For readers of recordings: every table and column. A capture is a folder of segments, files `segment-<number>.arrows` (`.open`
while they are written): Arrow IPC streams, compressed with zstd, with a checksum of every byte of each batch. Their rows are
frames; the other tables are made of these. Numbers of segments have no gaps, but the first may have been removed for their size
or age.

Times that end in `_ns` are nanoseconds: of the wall clock since 1970 UTC (`ts_ns`, `time_ns`), or of a monotonic clock with an
arbitrary start (`mono_ns`, `latency_ns`, `deadline_ns`), which no correction of the clock disturbs.

Rows of `frames` without a frame say something about the recording, in their options: `{"gap": ...}` what is missing before
them and why (`dropped`: the recorder could not keep up; `disk`: it was full; `failed`: a mistake of the recorder; `killed`: it
was, in the middle of a batch; `retention`: removed for size or age; `damaged`: left out by `recover`), and `{"link": ...}` that
a connection has begun or ended. The former are no frames; the latter are counted as frames, and are events of the kinds `open`
and `close`, as are the words by which a protocol says the same, of a connection or of a `client`
behind one. A batch without rows says that the recording (`capture_id` in the metadata of its segment) is over.

What a recording or `polybus capture decode` has decoded stands beside the segments: `events/segment-<number>.parquet` with the
columns of `events` below, all of them, and `quarantine/segment-<number>.parquet`. They are plain Parquet. The key
`polybus.decoded` of their metadata is a JSON object: which `segment` they are of (its size and a checksum), the versions of the
`decoders` by protocol, and of each row group the batches of the segment that it holds (`first`, up to `after`), with the
numbers of `frames`, `empty` ones and `gaps` among them. Files whose names begin with a dot are not finished.

On every run: frames = frames with an event + rows of `quarantine` + empty payloads.
"""

EXCHANGES = """A row for each request, with its answer; and for each stream or channel (`kind` is `stream`), with its items and
its end. [What happened on my bus](../tutorial/what-happened.md#3-ask) says what each `outcome` means.

What a NATS stream keeps makes three kinds of them, by the column `stored`. A **publication** is answered by the stream, with
`OK` or `DUPLICATE` (it had the id already). A **delivery** is answered by who got it: `OK` (handled), `NAK` with the code
ABORTED (comes again), `TERM` with FAILED_PRECONDITION (comes no more); each attempt is an exchange of its own, and never
late: the stream gives it out again. A **dead letter** is stored by the bus that gives up, and has the number, the attempts
and the reason of the publication that it is about. Replays settle nothing, and their deliveries are events of the kind
`publish`. What is settled on another connection than it came by is open there, and an orphan here."""
_TABLES = {
    "frames": ("As recorded: a row for each frame.", schema.FRAMES),
    "events": ("What frames say: a row for each message. Its key is (`capture_id`, `seq`, `sub`).", schema.EVENTS),
    "quarantine": ("Frames of which not even one message could be read.", schema.QUARANTINE),
    "exchanges": (EXCHANGES, schema.EXCHANGES),
    "orphans": ("Responses to which no request was recorded: the columns of `events`.", None),
}


RESULTS = """## Results of the pipeline

`polybus analyse` writes `events`, `quarantine`, `exchanges` and `orphans` as Parquet files under
`date=<of the frame or request, UTC>/protocol=<name>`: these two columns stand in the names of folders, not in the files, and
every reader of such folders finds them there. Those files that count are named in
`_manifest/run-<number>.json`: the `added` ones of all runs, and the `provisional` ones of the last, whose exchanges may still
change: `Done.provisional`, and `provisional` of `polybus analyse --json` and of `metrics.json`, is their number. The tables
below are small, and written anew by each run that finds something new. `metrics.json` holds them as lists, beside `counts` and
`totals` of everything, `begin_ns` and `end_ns` (ns since 1970 UTC), `window_ns` (the length of the windows), `gaps` and
`losses` (the first 100), `runs`, `settings` and the path of the `capture`. `verdict` is a list of sentences (`about`: fine,
failed, missing, slow, new, better, same, broke, unheard, unseen, cancelled, places or clocks; `text`; `section` of the
report), `compared` names what `--before`
was (null without it). `totals.outcomes` counts requests, `totals.streams` the streams. `journeys` are
the exchanges that the report shows with their `hops` and `frames` (`at_ns`: ns
since the first of them).

Metrics are about exchanges and publications of users: those of subjects that begin with `_polybus.`, by which buses get to know
each other, are in the tables above, and in the metrics `totals.internal` is the number of such exchanges.

"""


def _columns(columns: pa.Schema) -> list[str]:
    lines = ["| column | type | meaning |", "| --- | --- | --- |"]
    for column in columns:
        meaning = _cell((column.metadata or {})[b"doc"].decode()).replace("<", "&lt;")
        lines.append(f"| `{column.name}` | {_cell(str(column.type)).replace('<', '&lt;')} | {meaning} |")
    return [*lines, ""]


def captures() -> str:
    """The page, with every table and column."""
    lines = [CAPTURES]
    for name, (doc, columns) in _TABLES.items():
        lines += [f"## {name}", "", doc, ""]
        if columns is not None:
            lines += _columns(columns)
    lines += [RESULTS]
    for name, (doc, columns) in METRICS.items():
        lines += [f"### metrics/{name}", "", doc, "", *_columns(columns)]
    return "\n".join(lines).rstrip() + "\n"


PAGES: dict[str, Callable[[], str]] = {
    "command-line.md": command_line,
    "features.md": features,
    "captures.md": captures,
}

if __name__ == "__main__":
    for name, write in PAGES.items():
        (FOLDER / name).write_text(write(), encoding="utf-8")
