"""`polybus capture`: inspect, check, repair, convert and export captures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import typer
from attrs import asdict
from rich.console import Console

from .. import capture
from ..plugins.tools import counted, in_one_line
from .options import Folder, Json, argument, group
from .problems import PeerError
from .values import json_line

commands: typer.Typer = group("capture", "Inspect, check, repair, convert and export captures.")

Out = Annotated[str, argument("OUT", "Empty or new folder.")]


@commands.command()
def info(folder: Folder, as_json: Json = False) -> None:
    """Show its contents: frames, times, protocols, gaps."""
    found = capture.info(capture.Capture(folder))
    if as_json:
        print(json_line(asdict(found)))
        return
    recordings = ", ".join(f"{name} (ended)" if name in found.ended else name for name in found.captures)
    segments = f"{counted(found.segments, 'segment')} ({found.open} open)"
    print(in_one_line(f"{segments}, {found.bytes} bytes; recordings {recordings}"))  # another program may have chosen the names
    print(f"{counted(found.frames, 'frame')} of {found.frame_bytes} bytes on {counted(found.connections, 'connection')}")
    if found.marks:
        print(f"{found.marks} marks of the start or end of a connection; polybus analyse counts them as frames, too")
    for protocol, count in sorted(found.protocols.items(), key=str):
        print(in_one_line(f"  {protocol}: {count}"))
    if found.first_ns is not None and found.last_ns is not None:
        print(f"from {_time(found.first_ns)} to {_time(found.last_ns)} ({(found.last_ns - found.first_ns) / 1e9:.3f} s)")
    for reason, count in sorted(found.gaps.items()):
        print(in_one_line(f"gap: {counted(count, 'frame')} missing ({reason})"))
    if found.lost_stretches:
        lost = f"{counted(found.lost_stretches, 'stretch')}, {counted(found.lost_frames, 'frame')}"
        print(f"damaged: {lost}; see polybus capture verify")
    for source in found.sources:
        print(in_one_line(f"a replay of {source}"))


def _time(ns: int) -> str:
    return datetime.fromtimestamp(ns / 1e9, UTC).isoformat(timespec="milliseconds")


@commands.command()
def verify(folder: Folder, as_json: Json = False) -> None:
    """Check every byte. Status 1 if something is damaged or missing."""
    with _progress("verifying") as progress:
        found = capture.verify(capture.Capture(folder), progress)
    if as_json:
        print(json_line(asdict(found)))
    else:
        print(f"{found.frames} rows in {found.batches} batches are good")
        for loss in found.losses:
            stretch = loss.stretch
            rows = "an unknown number of" if stretch.frames is None else stretch.frames
            where = (
                f"{stretch.size} bytes at {stretch.offset} are damaged"
                if stretch.size
                else f"it ends at {stretch.offset}, cut short"
            )
            print(f"segment {loss.segment}: {where}: {rows} rows, batch {stretch.batch}")
        for number in found.missing:
            print(f"segment {number} is missing")
    if not found.good:
        raise PeerError(f"{folder} is damaged; polybus capture recover saves its good parts as a new capture")


@commands.command()
def recover(folder: Folder, out: Out) -> None:
    """Save the readable parts of a damaged capture, or of a killed recorder's, as a new one, and report the loss."""
    with _progress("recovering") as progress:
        found = capture.recover(folder, out, progress)
    print(f"saved: {counted(found.frames, 'row')} in {counted(found.batches, 'batch')}: {out}")
    print(
        f"lost: {counted(found.lost_frames, 'row')} that can be counted, "
        f"in {counted(found.lost_stretches, 'stretch')} of {found.lost_bytes} bytes; "
        f"missing: {counted(len(found.missing), 'segment')}"
    )


@commands.command()
def decode(folder: Folder, as_json: Json = False) -> None:
    """Store the decoded frames beside them, once for all later readers. The recorder may keep running.

    Decodes only sealed segments, each once. Status 1 if something is damaged.
    """
    with _progress("decoding") as progress:
        found = capture.write_columns(folder, progress)
    if as_json:
        print(json_line(asdict(found)))
    else:
        print(
            f"{counted(found.segments, 'segment')} decoded: {found.frames} frames, {found.events} events, {found.bytes} bytes"
        )
        print(f"{counted(found.fresh, 'segment')} had been before; {found.open} open")
    if found.damaged:
        numbers = ", ".join(map(str, found.damaged))
        raise PeerError(
            f"{folder} is damaged in segment {numbers}: its good parts are decoded at each reading; "
            "polybus capture verify names what is lost"
        )


@commands.command()
def compact(folder: Folder, out: Out) -> None:
    """Write the frames as Parquet, in few large files. Status 1 if something is damaged."""
    source = capture.Capture(folder)
    with _progress("writing") as progress:
        _written(source, capture.compact(source, out, progress))


@commands.command()
def export(
    folder: Folder,
    out: Out,
    format: Annotated[Literal["parquet", "jsonl"], typer.Option(help="Format of the files.")] = "parquet",
    table: Annotated[
        Literal["frames", "events", "quarantine"],
        typer.Option(help="Recorded frames, decoded messages, or frames that do not decode."),
    ] = "events",
) -> None:
    """Write a table as Parquet or JSONL. Status 1 if something is damaged."""
    source = capture.Capture(folder)
    with _progress("writing") as progress:
        _written(source, capture.export(source, out, format=format, table=table, progress=progress))


def _written(source: Any, paths: list[Any]) -> None:
    for path in paths:
        print(path)
    if source.losses:
        frames = sum(loss.stretch.frames or 0 for loss in source.losses)
        raise PeerError(
            f"{source.path} is damaged: {counted(len(source.losses), 'stretch')} cannot be read, "
            f"of {counted(frames, 'frame')} as far as "
            "that can be told, and nothing of that is in these files; polybus capture verify says where"
        )


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int], None]]:
    """Row counter on stderr, on a terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda rows: None
        return
    with console.status(f"{what} ...") as status:
        yield lambda rows: status.update(f"{what}: {rows:,} rows")
