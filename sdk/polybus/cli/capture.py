"""`polybus record`, `polybus replay` and `polybus capture`."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal

import anyio
import typer
from attrs import asdict
from rich.console import Console

from .. import capture
from ..plugins.registry import has_tls, resolve_target, split_url, with_tls
from ..plugins.tools import counted, in_one_line, shown_duration
from .options import (
    Ca,
    Folder,
    Header,
    Insecure,
    Json,
    Key,
    OwnCert,
    Tls,
    Url,
    Wait,
    argument,
    client_tls,
    connects,
    dialling,
    flag,
    group,
    json_line,
    option,
    parse_size,
    server_tls,
)
from .problems import PeerError, UsageError
from .process import announce, ending, start_log

_NOUNS: Final = {
    "publish": "publication",
    "request": "request",
    "notify": "notification",
    "subscribe": "subscription",
    "unsubscribe": "unsubscription",
    **{"cancel": "cancellation", "open": "stream", "item": "stream item", "credit": "stream credit", "end": "stream end"},
    **{"cut": "truncated frame", "damaged": "corrupt frame", "unreadable": "unreadable frame", "tunnel": "tunnel frame"},
}


def record(
    url: Url,
    folder: Annotated[str, argument("DIR", "Folder for the capture, created if missing.")],
    listen: Annotated[str | None, option("URL", "Address for clients. Defaults to a free port on this machine.")] = None,
    max_bytes: Annotated[
        str, option("N", "Maximum size of the folder, such as 500M or 10G. The oldest segments are removed.")
    ] = "10G",
    max_age: Annotated[float, option("DAYS", "Remove segments older than this.", min=0)] = 7.0,
    bodies: Annotated[bool, flag("--bodies/--no-bodies", "Record message bodies.")] = True,
    redact: Annotated[bool, flag("--redact/--no-redact", "Mask secrets.")] = True,
    decode: Annotated[bool, flag("--decode/--no-decode", "Decode each segment when it is sealed.")] = False,
    insecure: Insecure = False,
    ca: Ca = None,
    cert: OwnCert = None,
    key: Key = None,
) -> None:
    """Record every frame between clients and the server at URL, as a proxy, until SIGINT or SIGTERM.

    Prints the address that clients should use.
    """
    start_log()
    options: dict[str, Any] = {"bodies": bodies, "redact": "default" if redact else None, "decode": decode}
    options |= {"max_bytes": parse_size("--max-bytes", max_bytes), "max_age": max_age * 86400 or 1.0}
    recorder = capture.make_recorder(folder, **options)
    from ..capture.record.proxy import RecordingProxy

    here = listen or _beside(url)
    secure = with_tls((url, here))
    if ca and not has_tls(url):
        raise UsageError("--ca is for connections with TLS, but URL does not use TLS")
    tls = client_tls(ca, cert, key) if url in secure else None
    shown = server_tls(cert, key) if here in secure and here != url else None
    proxy = RecordingProxy(url, recorder, here, insecure=insecure, tls=tls, listen_tls=shown)
    anyio.run(_record, proxy)


async def _record(proxy: Any) -> None:
    with ending() as signalled:
        async with proxy:
            announce(proxy.url)
            await signalled()
    stats = proxy.recorder.stats()
    print(f"{proxy.recorder.path}: {stats.frames} rows, {stats.bytes} bytes, {stats.dropped} dropped", flush=True)


def _beside(url: str) -> str:
    """Return a local URL with a free port, and with the same protocol and kind of transport as `url`."""
    parts = split_url(url)
    if parts.transport.startswith(("http", "zenoh")):
        return url  # the proxy reports that HTTP and fabrics are unsupported
    transport = {"wss": "ws", "tls": "tcp"}.get(parts.transport, parts.transport)
    if transport not in ("ws", "tcp"):
        raise UsageError(f"{url}: add an address for clients, for example --listen {parts.protocol}+tcp://127.0.0.1:9000")
    path = "/" + parts.address.partition("://")[2].partition("/")[2] if transport == "ws" else ""
    query = "&".join(f"{name}={value}" for name, value in parts.options.items())
    return f"{parts.protocol}+{transport}://127.0.0.1:0{path}{'?' if query else ''}{query}"


@connects
def replay(
    folder: Folder,
    url: Url,
    speed: Annotated[float, option("X", "Speed: 2 replays twice as fast, 0 without pauses.")] = 1.0,
    start: Annotated[
        str | None, option("T", "Start here: seconds since the beginning of the capture, or a time (UTC).")
    ] = None,
    end: Annotated[str | None, option("T", "Stop here, in the same format.")] = None,
    subject: Annotated[list[str] | None, option("PATTERN", "Replay only this subject. Can be repeated.")] = None,
    connection: Annotated[list[str] | None, option("ID", "Replay only this connection. Can be repeated.")] = None,
    record: Annotated[str | None, option("DIR2", "Record the replay in this folder. Defaults to DIR-replay.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Show what would be sent, without connecting.")] = False,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> None:
    """Send the clients' recorded messages again, to the server at URL.

    The replay uses new connections and new ids, and first repeats handshakes and subscriptions.
    """
    start_log()
    if not speed >= 0:
        raise UsageError(f"--speed {speed}: use a number from 0 on")
    if record is None and not dry_run and "://" in folder:
        raise UsageError("no folder for the recording of this replay: add --record DIR, a folder on this machine")
    selection = capture.Selection(_point(start, "--start"), _point(end, "--end"), tuple(subject or ()), tuple(connection or ()))
    source = capture.Capture(folder)
    resolve_target(url, None)  # also for a dry run
    where = record or f"{os.path.abspath(folder)}-replay"

    async def run() -> Any:
        return await capture.replay(
            source,
            url,
            speed=speed or math.inf,
            selection=selection,
            record=where,
            dry_run=dry_run,
            **dialling(header, tls, wait),
        )

    report = anyio.run(run)
    if as_json:
        facts = {name: getattr(report, name) for name in ("connections", "answered", "failed", "seconds")}
        print(json_line({**facts, "said": dict(report.said), "skipped": dict(report.skipped)}))
        return
    if not report.said:
        given = {"--subject": subject, "--connection": connection, "--start": start and [start], "--end": end and [end]}
        wanted = " ".join(f"{name} {value!r}" for name, values in given.items() for value in values or ())
        raise PeerError(
            f"{folder}: no client sent anything{' with ' + wanted if wanted else ''}; polybus capture info {folder} shows "
            f"the times, polybus capture export {folder} LINES --format jsonl --table events the subjects and connections"
        )
    said = _counts(report.said)
    verb = "would send" if dry_run else "sent"
    took = shown_duration(report.seconds * 1e9)
    print(f"{verb} {said} over {counted(report.connections, 'connection')}, {took} of the recording")
    if not dry_run:
        print(f"{report.answered} answered, {report.failed} failed")
    if any(report.skipped.values()):
        print(f"not sent: {_counts(report.skipped)}")


def _counts(found: Mapping[str, int]) -> str:
    counts = [
        counted(count, _NOUNS[kind]) if kind in _NOUNS else f"{count} {kind}" for kind, count in sorted(found.items()) if count
    ]
    return ", ".join(counts)


def _point(text: str | None, option: str) -> float | datetime | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if math.isfinite(seconds):
        return seconds
    try:
        point = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{option} {text!r}: use seconds since the start, or a time such as 2026-01-31T12:00:00Z") from None
    return point if point.tzinfo is not None else point.replace(tzinfo=UTC)


# -- polybus capture ---------------------------------------------------------------------------------------------------------

commands: typer.Typer = group("capture", "Inspect, verify, repair, convert and export captures.")

Out = Annotated[str, argument("OUT", "Folder to write to, new or empty.")]


@commands.command()
def info(folder: Folder, as_json: Json = False) -> None:
    """Show the frames, times, protocols and gaps of a capture."""
    found = capture.info(capture.Capture(folder))
    if as_json:
        print(json_line(asdict(found)))
        return
    recordings = ", ".join(f"{name} (ended)" if name in found.ended else name for name in found.captures)
    segments = f"{counted(found.segments, 'segment')} ({found.open} open)"
    print(
        in_one_line(f"{segments}, {found.bytes} bytes; recordings {recordings}")
    )  # the names can come from a third-party program
    print(f"{counted(found.frames, 'frame')} of {found.frame_bytes} bytes on {counted(found.connections, 'connection')}")
    if found.marks:
        print(f"{found.marks} starts and ends of connections, which polybus analyse also counts as frames")
    for protocol, count in sorted(found.protocols.items(), key=str):
        print(in_one_line(f"  {protocol}: {count}"))
    if found.first_ns is not None and found.last_ns is not None:
        print(f"from {_time(found.first_ns)} to {_time(found.last_ns)} ({shown_duration(found.last_ns - found.first_ns)})")
    for reason, count in sorted(found.gaps.items()):
        print(in_one_line(f"gap: {counted(count, 'frame')} missing ({reason})"))
    if found.lost_stretches:
        lost = f"{counted(found.lost_stretches, 'stretch')}, {counted(found.lost_frames, 'frame')}"
        print(f"corrupt: {lost}; see polybus capture verify")
    for source in found.sources:
        print(in_one_line(f"a replay of {source}"))


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds")


@commands.command()
def verify(folder: Folder, as_json: Json = False) -> None:
    """Verify every byte of a capture.

    Exits with status 1 if something is corrupt or missing.
    """
    with _progress("verifying") as progress:
        found = capture.verify(capture.Capture(folder), progress)
    if as_json:
        print(json_line(asdict(found)))
    else:
        print(f"{found.frames} rows in {found.batches} batches are intact")
        for loss in found.losses:
            stretch = loss.stretch
            rows = "an unknown number of" if stretch.frames is None else stretch.frames
            where = (
                f"{stretch.size} bytes at {stretch.offset} are corrupt" if stretch.size else f"truncated at {stretch.offset}"
            )
            print(f"segment {loss.segment}: {where} ({rows} rows, batch {stretch.batch})")
        for number in found.missing:
            print(f"segment {number} is missing")
    if not found.good:
        raise PeerError(f"{folder} is corrupt; polybus capture recover saves the readable parts as a new capture")


@commands.command()
def recover(folder: Folder, out: Out) -> None:
    """Save the readable parts of a corrupt capture as a new one.

    Also works if the recorder was killed. Reports what was lost.
    """
    with _progress("recovering") as progress:
        found = capture.recover(folder, out, progress)
    print(f"saved to {out}: {counted(found.frames, 'row')} in {counted(found.batches, 'batch')}")
    print(
        f"lost: at least {counted(found.lost_frames, 'row')}, "
        f"in {counted(found.lost_stretches, 'stretch')} of {found.lost_bytes} bytes; "
        f"missing: {counted(len(found.missing), 'segment')}"
    )


@commands.command()
def decode(folder: Folder, as_json: Json = False) -> None:
    """Store decoded frames in the capture for all later readers.

    Decodes sealed segments only, each of them once, so the recorder can keep running. Exits with status 1 if something is
    corrupt.
    """
    with _progress("decoding") as progress:
        found = capture.write_columns(folder, progress)
    if as_json:
        print(json_line(asdict(found)))
    else:
        print(
            f"{counted(found.segments, 'segment')} decoded: {found.frames} frames, {found.events} events, {found.bytes} bytes"
        )
        print(f"{counted(found.fresh, 'segment')} already decoded; {found.open} still open")
    if found.damaged:
        numbers = ", ".join(map(str, found.damaged))
        raise PeerError(
            f"{folder} is corrupt in segment {numbers}, whose readable parts are decoded on each use; "
            "polybus capture verify shows what is lost"
        )


@commands.command()
def compact(folder: Folder, out: Out) -> None:
    """Write the frames to a few large Parquet files.

    Exits with status 1 if something is corrupt.
    """
    source = capture.Capture(folder)
    with _progress("writing") as progress:
        _written(source, capture.compact(source, out, progress))


@commands.command()
def export(
    folder: Folder,
    out: Out,
    format: Annotated[Literal["parquet", "jsonl"], typer.Option(help="File format.")] = "parquet",
    table: Annotated[
        Literal["frames", "events", "quarantine"],
        typer.Option(help="Recorded frames, decoded messages, or frames that cannot be decoded."),
    ] = "events",
) -> None:
    """Export a table as Parquet or JSONL.

    Exits with status 1 if something is corrupt.
    """
    source = capture.Capture(folder)
    with _progress("writing") as progress:
        _written(source, capture.export(source, out, format=format, table=table, progress=progress))


def _written(source: Any, paths: list[Any]) -> None:
    for path in paths:
        print(path)
    if source.losses:
        frames = sum(loss.stretch.frames or 0 for loss in source.losses)
        raise PeerError(
            f"{source.path} is corrupt: {counted(len(source.losses), 'stretch')} with at least {counted(frames, 'frame')} "
            "cannot be read and are missing from these files; polybus capture verify shows where"
        )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda rows: None
        return
    with console.status(f"{what} ...") as status:
        yield lambda rows: status.update(f"{what}: {rows:,} rows")
