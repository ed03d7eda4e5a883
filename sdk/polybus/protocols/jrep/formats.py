"""The body formats of J.REP: marked values, and messages with application-defined parts."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from ...body import MASKED, BodyFormat, check_depth, refuse_secrets
from ...errors import BadRequest, BusError, EncodeError
from .java import JavaTypes, Numbering, quoted
from .names import MAX_PARTS, PROTOCOL_PARTS
from .value_reader import READERS, ValueReading
from .value_writer import ValueWriter

_decode: Final = msgspec.json.Decoder().decode
_ID: Final = re.compile(rb'"\^ObjectID"\s*:\s*"(\d{1,9})"')


class Parts(dict[str, Any]):
    """A body of named parts: ``bus.publish("chat", Parts(Nick="Ann", Text="hi"))``.

    On the wire the parts are members of the message, next to ToSubject. In a received message they are in `Message.attributes`.
    Any other body is sent as a part named ``Value``.

    Raises:
        ValueError: If the protocol reserves a name, or there are more than 255 parts.
    """

    def __init__(self, parts: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        super().__init__(parts or {}, **more)
        taken = sorted(name for name in self if name in PROTOCOL_PARTS and name != "Value")
        if taken:
            raise ValueError(f"{', '.join(taken)}: these parts are set by the bus")
        if len(self) >= MAX_PARTS:
            raise ValueError(f"{len(self)} parts: at most {MAX_PARTS - 1}")

    def __repr__(self) -> str:
        return f"Parts({super().__repr__()})"


class ErraiFormat:
    """Errai's marked values. Bare JSON can also be read."""

    content_type = "application/vnd.errai+json"

    def __init__(self, types: JavaTypes, strict: bool, depth: int) -> None:
        self.types: JavaTypes = types
        self.strict: bool = strict
        self.depth: int = 2 * depth + 1  # each level and the value in the innermost have a marker
        self._few = depth - 1
        self._write = ValueWriter(types).write
        self._readers = dict(READERS)

    def encode(self, value: Any, ids: Numbering | None = None) -> bytes:
        """Write a value as JSON. All parts of a message share `ids`."""
        if ids is None:
            ids = Numbering()
        data = self._write(value, ids)
        # Each level has an object with an id, so few ids mean few levels.
        if ids.next > self._few or ids.copied:
            check_depth(data, self.depth, self.depth // 2)
        if data.find(MASKED) >= 0:
            refuse_secrets(value)
        return data

    def reading(self) -> ValueReading:
        return ValueReading(self.types, self.strict, self._readers)

    def decode(self, data: bytes) -> Any:
        """Read JSON. The caller has checked its nesting depth."""
        try:
            node = _decode(data)
            if type(node) is str:
                return node
            reading = ValueReading(self.types, self.strict, self._readers)
            value = reading.value(node)
            if reading.referred is not None:
                reading.referred.add(value, self.depth)
            return value
        except BusError:
            raise
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body is not JSON: {error}") from error


class PartsFormat:
    content_type = "application/vnd.errai.parts+json"

    def __init__(self, values: Any) -> None:
        self._values = values

    def encode(self, value: Any) -> bytes:
        if not isinstance(value, Parts):
            raise EncodeError(f"parts are written as Parts(...), not as {type(value).__name__}")
        encode, parts = encoder_of(self._values), Parts(value)  # a part may have been added since
        return b"{%b}" % b",".join([b"%b:%b" % (quoted(name), encode(item)) for name, item in parts.items()])

    def decode(self, data: bytes) -> Any:
        node = _decode(data)
        if isinstance(self._values, ErraiFormat):
            reading = self._values.reading()
            return Parts({name: reading.read(item, self._values.depth) for name, item in node.items()})
        return Parts(node)


def encoder_of(values: BodyFormat, written: bytes = b"") -> Callable[[Any], bytes]:
    """Return a function that writes further parts of a message, continuing the numbering of object ids."""
    if not isinstance(values, ErraiFormat):
        return values.encode
    used = map(int, _ID.findall(written))
    return partial(values.encode, ids=Numbering(max(used, default=0) + 1))
