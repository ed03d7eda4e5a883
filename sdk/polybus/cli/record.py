"""`polybus record` and `polybus replay`"""

from __future__ import annotations

import logging
import math
import os
import signal
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import anyio

from .. import capture
from ..plugins.registry import has_tls, resolve_target, split_url, with_tls
from ..plugins.tools import counted
from .options import Ca, Folder, Header, Insecure, Json, Key, OwnCert, Tls, Url, Wait, argument, connects, flag, option
from .problems import PeerError, UsageError, announce
from .values import client_tls, dialling, json_line, parse_size, server_tls

_NOUNS: Final = {
    "publish": "publication",
    "request": "request",
    "notify": "notification",
    "subscribe": "subscription",
    "unsubscribe": "unsubscription",
}


def record(
    url: Url,
    folder: Annotated[str, argument("DIR", "Where the capture is written; made where it is not there.")],
    listen: Annotated[str | None, option("URL", "Where clients connect; a free port on this machine by default.")] = None,
    max_bytes: Annotated[str, option("N", "Of the folder, as 500M or 10G; the oldest goes first.")] = "10G",
    max_age: Annotated[float, option("DAYS", "Older segments are removed.", min=0)] = 7.0,
    bodies: Annotated[bool, flag("--bodies/--no-bodies", "Whether bodies are written.")] = True,
    redact: Annotated[bool, flag("--redact/--no-redact", "Whether secrets are blanked.")] = True,
    decode: Annotated[bool, flag("--decode/--no-decode", "Whether what is sealed is decoded meanwhile, once for all.")] = False,
    insecure: Insecure = False,
    ca: Ca = None,
    cert: OwnCert = None,
    key: Key = None,
) -> None:
    """Stand between clients and the server at URL and record every frame, until SIGINT or SIGTERM.

    Prints the address to which clients connect instead.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    options: dict[str, Any] = {"bodies": bodies, "redact": "default" if redact else None, "decode": decode}
    options |= {"max_bytes": parse_size("--max-bytes", max_bytes), "max_age": max_age * 86400 or 1.0}
    recorder = capture.make_recorder(folder, **options)
    from ..capture.record.proxy import RecordingProxy

    here = listen or _beside(url)
    secure = with_tls((url, here))
    if ca and not has_tls(url):
        raise UsageError("--ca: authorities to trust where the recorder connects, and URL has no TLS")
    tls = client_tls(ca, cert, key) if url in secure else None
    shown = server_tls(cert, key) if here in secure and here != url else None
    proxy = RecordingProxy(url, recorder, here, insecure=insecure, tls=tls, listen_tls=shown)
    anyio.run(_record, proxy)


async def _record(proxy: Any) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with proxy:
            announce(proxy.url)
            await anext(aiter(signals))
    stats = proxy.recorder.stats()
    print(f"{stats.frames} rows, {stats.bytes} bytes, {stats.dropped} lost: {proxy.recorder.path}", flush=True)


def _beside(url: str) -> str:
    """A free port here, for the protocol and the kind of transport of a URL."""
    parts = split_url(url)
    if parts.transport.startswith(("http", "zenoh")):
        return url  # the proxy tells that there is none for HTTP, nor for a fabric
    transport = {"wss": "ws", "tls": "tcp"}.get(parts.transport, parts.transport)
    if transport not in ("ws", "tcp"):
        raise UsageError(
            f"{url}: say with --listen where clients shall connect, for example --listen {parts.protocol}+tcp://127.0.0.1:9000"
        )
    path = "/" + parts.address.partition("://")[2].partition("/")[2] if transport == "ws" else ""
    query = "&".join(f"{name}={value}" for name, value in parts.options.items())
    return f"{parts.protocol}+{transport}://127.0.0.1:0{path}{'?' if query else ''}{query}"


@connects
def replay(
    folder: Folder,
    url: Url,
    speed: Annotated[float, option("X", "2 is twice as fast; 0 as fast as can be.")] = 1.0,
    start: Annotated[str | None, option("T", "From here on: seconds after its begin, or a time (UTC).")] = None,
    end: Annotated[str | None, option("T", "Up to here.")] = None,
    subject: Annotated[list[str] | None, option("PATTERN", "Only these subjects; several times.")] = None,
    connection: Annotated[list[str] | None, option("ID", "Only these connections; several times.")] = None,
    record: Annotated[str | None, option("DIR2", "Record the replay; DIR-replay by default.")] = None,
    dry_run: Annotated[bool, flag("--dry-run", "Connect to nobody; only tell what would be said.")] = False,
    header: Header = None,
    tls: Tls = None,
    wait: Wait = 0.0,
    as_json: Json = False,
) -> None:
    """Say again to the server at URL what the clients of a recording said.

    Over new connections, with new ids; subscriptions and handshakes are made again first.
    """
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if not speed >= 0:
        raise UsageError(f"--speed {speed}: a number, not below 0")
    if record is None and not dry_run and "://" in folder:
        raise UsageError(f"where is the replay of {folder} to be recorded? --record DIR, a folder on this machine")
    selection = capture.Selection(_point(start, "--start"), _point(end, "--end"), tuple(subject or ()), tuple(connection or ()))
    source = capture.Capture(folder)
    resolve_target(url, None)  # also of a dry run
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
            f"{folder}: no client said anything{' with ' + wanted if wanted else ''}; polybus capture info {folder} has the "
            f"times, polybus capture export {folder} LINES --format jsonl --table events the subjects and connections"
        )
    said = _counts(report.said)
    verb = "would say" if dry_run else "said"
    print(f"{verb} {said} over {counted(report.connections, 'connection')}, {report.seconds:.1f} s of the recording")
    if not dry_run:
        print(f"{report.answered} answered, {report.failed} failed")
    if any(report.skipped.values()):
        print(f"not said: {_counts(report.skipped)}")


def _counts(found: Mapping[str, int]) -> str:
    """So many of each kind, for people."""
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
        raise UsageError(f"{option} {text!r}: seconds after the begin, or a time as 2026-01-31T12:00:00Z") from None
    return point if point.tzinfo is not None else point.replace(tzinfo=UTC)
