"""Compares the C code with its twin in Python: the same message, bytes or error for any input.

``python -m fuzz.twins 10000000`` tries so many damaged frames, at some 200 µs each. Under an address sanitizer, with each
block of memory one of C's, so that it sees what is read beyond the end of one::

    CFLAGS="-g -O1 -fsanitize=address,undefined" LDFLAGS="-fsanitize=address,undefined" .venv/bin/pip install --no-deps -e .
    LD_PRELOAD="$(gcc -print-file-name=libasan.so) $(gcc -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0 \
        PYTHONMALLOC=malloc .venv/bin/python -m fuzz.twins 300000
    touch hatch_build.py    # so that make builds it anew without

``python -m fuzz.twins --no-memory`` lets each allocation fail in turn. It wants `_testcapi`, which not every CPython has.
"""

from __future__ import annotations

import argparse
import random
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import attrs
from attrs import field, frozen

from polybus.body import JSON, JsonFormat, check_depth
from polybus.errors import BusError
from polybus.limits import Limits
from polybus.message import Message
from polybus.protocols import Ubre
from polybus.protocols.ubre.json_format import JsonReader, JsonWriter, json_readers
from polybus.speedups import native
from polybus.transports._stream import framing

_LIMITS: Final = (Limits(), Limits(message=90, depth=4, subject=32, id=24))
_SLOTS: Final = [one.name for one in attrs.fields(Message)]
# Bodies without text: msgspec itself crashes if it has no memory for one.
_USUAL: Final = (
    b'{"request":"a.b","id":"a-1","body":{"a":[1]},"ttl":30}',
    b'{"success":"a-1","body":[7]}',
    b'{"publish":"a","body":1}',
)
_PENDING: Final[Sequence[Mapping[Any, Any]]] = ({}, {"a-1": None, "a-2": None, 7: None})
_INSERTED: Final = (
    b'","body":', b'{"a":null}', b"[[1]]", b',"ttl":', b"0", b"12345678901234567", b" ", b"\\", b'"', b"}", b"{", b"\xc3\xa4",
    b"\xff", b"NaN", b'{"publish":"', b'{"success":"', b',"headers":{}', b'"id":"', b"e9", b"\0", b"[" * 140, b"x" * 300,
)  # fmt: skip


def outcome(act: Callable[..., Any], *given: Any) -> Any:
    """Result of a call, or its error, in a comparable form."""
    try:
        made = act(*given)
    except BusError as error:
        return type(error), str(error), repr(vars(error))
    except (TypeError, ValueError) as error:
        return type(error), str(error)
    if isinstance(made, Message):
        return [repr(getattr(made, name)) for name in _SLOTS], made.raw is made.checked
    return made


def _same(ours: Callable[..., Any], twin: Callable[..., Any], *given: Any) -> Any:
    found, wanted = outcome(ours, *given), outcome(twin, *given)
    assert found == wanted, (given, found, wanted)
    return found


def _fed(parts: Sequence[bytes], limit: int) -> Any:
    framer = framing.LengthFramer(limit)
    frames = [frame for part in parts for frame in framer.feed(part)]
    return frames, framer.partial, framer.arrived, framer.broken, framer.ended, framer.empty_frames


@frozen
class TwinsTarget:
    """Target for any bytes."""

    seeds: Callable[[], list[bytes]]
    adapters: tuple[Any, ...] = (Ubre(),)
    _twins: list[tuple[Any, ...]] = field(init=False)

    @_twins.default
    def _made(self) -> list[tuple[Any, ...]]:
        return [(*json_readers(one), JsonReader(one), JsonWriter(one, False)) for one in _LIMITS]

    def __call__(self, data: bytes) -> None:
        """Try one input.

        Raises:
            AssertionError: C and Python differ.
        """
        for read, usual, reader, writer in self._twins:
            _same(read, reader.read, data)
            for short in (usual, reader.usual):
                for pending in _PENDING:
                    if (found := outcome(short, data, pending)) is not None:
                        assert found == outcome(reader.read, data), data
            try:
                message = reader.read(data)
            except BusError:
                continue
            _same(writer.tell, JsonWriter.tell.__get__(writer), message.id, message.raw)
            ask = JsonWriter.ask.__get__(writer)
            _same(writer.ask, ask, message.subject, message.id, message.raw, message.ttl or 0.0285)
            if message.raw is not None:
                _same(writer.publication, JsonWriter.publication.__get__(writer), message.subject, message.raw)
                for value in (message.body, [message.body, float("nan")], {"a": message.body, "b": b"null"}):
                    _same(JSON.encode, JsonFormat.encode.__get__(JSON), value)
        _levels(data)
        _framing(data)


def _levels(data: bytes) -> None:
    for depth in (3, 128):
        if native is not None and native.is_shallow(data, depth):
            check_depth(data, depth)


def _framing(data: bytes) -> None:
    stream = b"".join(struct.pack("!I", len(part)) + part for part in data.split(b",")) + data
    parts = [stream[at : at + 61] for at in range(0, len(stream), 61)]
    found = _fed(parts, 80)
    with patch.object(framing, "native", None):
        assert found == _fed(parts, 80), stream


def mutations(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """A seed with a few damaged places, or none."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        at = rng.randrange(len(data) + 1)
        match rng.randrange(4):
            case 0:
                data[at : at + 1] = bytes((rng.randrange(256),))
            case 1:
                del data[at : at + rng.choice((1, 1, 2, 9))]
            case 2:
                data[at:at] = rng.choice(_INSERTED)
            case _:
                other = rng.choice(seeds)
                data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data)


def _no_memory() -> None:
    """Let the first allocation fail, then the second, until everything succeeds; nothing may be lost or crash, with any
    result."""
    import _testcapi  # type: ignore[import-not-found]  # distributions may leave it out

    writer, read = JsonWriter(_LIMITS[0], False), json_readers(_LIMITS[0])[0]
    assert native is not None
    acts: list[Callable[[], Any]] = [partial(read, frame) for frame in _USUAL]  # msgspec crashes with texts
    acts += [partial(writer.publication, "news", b"[1]"), partial(writer.ask, "news", "a-1", b"[1]", 1.5)]
    acts += [
        partial(writer.tell, "a-1", b"1"),
        partial(JSON.encode, {"a": [1, 2.5, "x"]}),
        partial(native.cut, b"\0\0\0\1a\0\0\0\2bc", 0, 80, []),
    ]
    for act in acts:
        for failing in range(200):
            try:
                _testcapi.set_nomemory(failing, failing + 1)
                act()
            except (MemoryError, BusError):
                continue
            except SystemError as error:  # CPython sets no error if it has no room for a Python frame
                assert "<function" in str(error) or str(error) == "error return without exception set", error
            finally:
                _testcapi.remove_mem_hooks()


def main() -> None:
    from fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(prog="python -m fuzz.twins")
    parser.add_argument("count", type=int, nargs="?", default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--no-memory", action="store_true")
    given = parser.parse_args()
    if native is None:
        sys.exit("python -m fuzz.twins: polybus._speedups has not been built here, or POLYBUS_SPEEDUPS is 0")
    target = TARGETS["ubre-twins"]
    seeds, rng = target.seeds(), random.Random(given.seed)
    if given.no_memory:
        _no_memory()
        return
    for _ in range(given.count):
        target(mutations(seeds, rng))


if __name__ == "__main__":
    main()
