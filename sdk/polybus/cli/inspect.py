"""`polybus inspect`"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

from attrs import asdict, field, frozen

from ..errors import BusError, RemoteProtocolError
from ..limits import Limits
from ..message import Message
from ..plugins import FrameField, ProtocolAdapter, ProtocolFeatures
from ..plugins.registry import find_reader
from ..plugins.tools import is_secret
from .options import argument, flag, json_line, option, parse_protocol
from .problems import PeerError, UsageError
from .show import Printer

_MOST = 64 * 1024 * 1024
_PREFIX = 4


@frozen
class FrameFindings:
    number: int
    offset: int
    size: int
    fields: list[FrameField] = field(factory=list)
    messages: list[dict[str, Any]] = field(factory=list)
    errors: list[str] = field(factory=list)


def inspect(
    source: Annotated[str, argument("FILE|HEX", "File, bytes in hexadecimal, or - for stdin.")],
    protocol: Annotated[str, option("P", "Protocol of the frames (required), such as ubre or 'ubre?format=binary'.")] = "",
    frames: Annotated[
        Literal["one", "lines", "lengths"],
        option(
            "HOW", "How to split the input: one (a single frame), lines (one per line), lengths (4-byte lengths, as on TCP)."
        ),
    ] = "one",
    as_json: Annotated[bool, flag("--json", "Print one line of JSON per frame.")] = False,
) -> None:
    """Decode frames into fields and messages.

    Exits with status 1 if a frame is malformed.
    """
    if not protocol and "://" not in source:  # a URL gets a better hint below
        raise UsageError("Missing option '--protocol': the protocol of the frames, for example --protocol ubre")
    data = _bytes(source)
    adapter = find_reader(*parse_protocol(protocol))
    findings = [_look(adapter, number, offset, frame) for number, (offset, frame) in enumerate(_cut(data, frames), 1)]
    printer = Printer()
    for finding in findings:
        if as_json:
            print(json_line(asdict(finding)))
        else:
            _show(printer, finding)
    sys.stdout.flush()
    bad = [finding for finding in findings if finding.errors]
    if bad:
        more = "" if len(bad) == 1 else f" ({len(bad)} of {len(findings)} frames are malformed)"
        hint = (
            "; if the input is several frames, use --frames lines or lengths" if len(findings) == 1 and frames == "one" else ""
        )
        raise PeerError(f"frame {bad[0].number}: {bad[0].errors[0]}{more}{hint}")


def _bytes(source: str) -> bytes:
    if source == "-":
        return _bounded(sys.stdin.buffer)
    try:
        if (path := Path(source)).exists():
            with path.open("rb") as file:
                return _bounded(file)
    except (OSError, ValueError) as error:
        if "/" in source:
            raise UsageError(f"{source[:100]} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if "://" in source:
        advice = "polybus doctor URL checks a server, polybus record URL DIR records its frames"
        raise UsageError(f"{source[:100]} is a URL, but inspect reads frames; {advice}")
    if not source.strip():
        raise UsageError("FILE|HEX is empty")
    digits = "".join(source.replace(":", " ").replace(",", " ").split()).removeprefix("0x")
    try:
        return bytes.fromhex(digits)
    except ValueError:
        raise UsageError(
            f"{source[:100]!r} is neither a file nor bytes in hexadecimal; pipe text to stdin: ... | polybus inspect -"
        ) from None


def _bounded(file: BinaryIO) -> bytes:
    data = file.read(_MOST + 1)
    if not 0 < len(data) <= _MOST:
        raise UsageError("the input is empty" if not data else f"the input is larger than {_MOST} bytes: split it")
    return data


def _cut(data: bytes, how: str) -> Iterator[tuple[int, bytes]]:
    if how == "one":
        yield 0, data
    elif how == "lines":
        offset = 0
        for line in data.split(b"\n"):
            if line.strip():
                yield offset, line.removesuffix(b"\r")
            offset += len(line) + 1
    else:
        offset = 0
        while offset < len(data):
            end = offset + _PREFIX + int.from_bytes(data[offset : offset + _PREFIX], "big")
            yield offset + _PREFIX, data[offset + _PREFIX : end]  # the codec rejects a truncated frame
            offset = end


def _look(adapter: ProtocolAdapter, number: int, offset: int, frame: bytes) -> FrameFindings:
    finding = FrameFindings(number, offset, len(frame))
    dissect = ProtocolFeatures.of(adapter).dissect
    if dissect is not None:
        finding.fields.extend(dissect(frame))
    try:
        decoded = adapter.codec(Limits(message=_MOST)).decode(frame)
    except RemoteProtocolError as error:
        finding.errors.append(str(error))
    else:
        for found in decoded:
            if isinstance(found, Message):
                finding.messages.append(_facts(found, finding))
            else:
                finding.errors.append(str(found))
    return finding


def _facts(message: Message, finding: FrameFindings) -> dict[str, Any]:
    facts: dict[str, Any] = {"kind": message.kind.value, "subject": message.subject, "id": message.id}
    try:
        body = message.body
    except BusError as error:
        body = message.raw
        finding.errors.append(f"the body cannot be decoded: {error}")
    facts |= {"ttl": message.ttl, "code": message.code and message.code.name, "reply_to": message.reply_to}
    # Users paste this output into tickets, so it must not show a token.
    given = {name: "..." if is_secret(name) else v for name, v in message.attributes.items() if v is not None}
    facts |= {"headers": message.headers or None, "attributes": given or None}
    facts = {name: value for name, value in facts.items() if value not in (None, "")}
    return facts | ({"body": body} if message.has_body else {})


def _show(printer: Printer, finding: FrameFindings) -> None:
    where = f" at byte {finding.offset}" if finding.offset else ""
    printer.head(f"frame {finding.number}{where}: {finding.size} bytes")
    # The value is the last column because it can be as long as the frame.
    rows = [(str(f.offset), str(f.length), f.name, f.note, f.value) for f in finding.fields]
    if rows:
        printer.table(("at", "bytes", "field", "note", "value"), rows)
    for facts in finding.messages:
        printer.head(f"  {facts.pop('kind')}")
        for name, value in facts.items():
            printer.line(f"    {name:<10} ", value if isinstance(value, str) else _printable(value))
    for error in finding.errors:
        printer.line("  malformed  ", error, style="red")


def _printable(value: Any) -> str:
    try:
        return json_line(value)
    except (TypeError, ValueError):
        return repr(value)
