"""Reads Errai's marked values, and bare JSON among them (notes sections 1.2 to 1.5).

What a marker claims is data: no class is ever looked up by a name from the wire, only in the application's own registry.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ...._util.typed_body import misfit
from ....body import check_json
from ....errors import BadRequest, EncodeError
from ..object_ids import KEY_PREFIX, NULL_KEY
from .object_reader import ObjectReading, Read
from .scalars import read_big_decimal, read_big_integer, read_boolean, read_date, read_float, read_integer, read_text

__all__ = ["READERS", "ValueReading"]

_KEY_DEPTH: Final = 4
_ALIKE: Final = 64
"""Elements of a set, or keys of a map, with one hash: it is easy to find any number of such numbers, and each is compared with
all before it. A set of 40,000 took eight seconds."""
_decode: Final = msgspec.json.Decoder().decode


class ValueReading(ObjectReading):
    """The values of one message: its parts share their ids."""

    __slots__ = ()

    def read(self, node: Any, depth: int) -> Any:
        """The Python value of decoded JSON.

        Raises:
            BadRequest: A marker is wrong; in strict mode also what is not known; or references make much of little.
        """
        value = self.value(node)
        if self.referred is not None:
            self.referred.add(value, depth)
        return value

    def value(self, node: Any) -> Any:
        """The same for a part of it."""
        kind = type(node)
        if kind is dict:
            name = node.get("^EncodedType")
            read = self._readers.get(name) if type(name) is str else None
            return read(self, node) if read is not None else self._other(node, name)
        if kind is list:
            return self._items(node, [])
        return node

    def _items(self, nodes: list[Any], made: list[Any]) -> list[Any]:
        """Add the elements of an array to a list."""
        add, find = made.append, self._readers.get
        for node in nodes:
            kind = type(node)
            if kind is str:
                add(node)
            elif kind is dict:
                try:
                    read = find(node["^EncodedType"])
                except (KeyError, TypeError):  # no marker, or one that is a list
                    read = None
                add(read(self, node) if read is not None else self._other(node, node.get("^EncodedType")))
            elif kind is list:
                add(self._items(node, []))
            else:
                add(node)
        return made

    # -- containers ------------------------------------------------------------------------------------------------------

    def _list(self, node: dict[str, Any]) -> Any:
        id, content, known = node.get("^ObjectID"), node.get("^Value"), self._known
        made: list[Any] = []
        if type(content) is not list or type(id) is not str or id in known or id == "-1":
            id, found = self._reference(node)
            if found is not None:
                return found
            if type(content) is not list:
                return self._opaque(node, id)
        if id is not None:
            known[id] = made
        return self._items(content, made)

    def _set(self, node: dict[str, Any]) -> Any:
        id, found = self._reference(node)
        if found is not None:
            return found
        content = node.get("^Value")
        if type(content) is not list:
            return self._opaque(node, id)
        items = self._items(content, [])
        try:
            if len(items) > _ALIKE:
                _check_alike(max(Counter(map(hash, items)).values()))
            made: Any = set(items)
        except TypeError:  # of lists or maps, which Python cannot put into a set
            made = items
        except Exception as error:
            raise _unhashable(error, "an element of a set") from error
        if id is not None:
            self._known[id] = made
        return made

    def _map(self, node: dict[str, Any]) -> Any:
        id, content, known = node.get("^ObjectID"), node.get("^Value"), self._known
        if type(content) is not dict or type(id) is not str or id in known or id == "-1":
            id, found = self._reference(node)
            if found is not None:
                return found
            if type(content) is not dict:
                return self._opaque(node, id)
        made: dict[Any, Any] = {}
        if id is not None:
            known[id] = made
        find, alike = self._readers.get, None
        for name, item in content.items():
            if name[:1] != "^":
                key: Any = name
            else:
                key = self._key(name)
                alike = Counter[int]() if alike is None else alike
                alike[hash(key)] += 1
                _check_alike(alike[hash(key)])
            if type(item) is str:
                made[key] = item
            elif type(item) is dict and type(marker := item.get("^EncodedType")) is str and (read := find(marker)) is not None:
                made[key] = read(self, item)
            else:
                made[key] = self.value(item)
        return made

    def _key(self, name: str) -> Any:
        if name == NULL_KEY:
            return None
        if not name.startswith(KEY_PREFIX):
            return name
        text = name[len(KEY_PREFIX) :].encode()
        try:
            check_json(text, 2 * _KEY_DEPTH)
            key = self.value(_decode(text))
        except (ValueError, RecursionError, EncodeError) as error:
            raise BadRequest(f"the map key {name[:60]!r} is no JSON of a value: {error}") from error
        try:
            hash(key)
        except TypeError:
            raise BadRequest(f"the map key {name[:60]!r} is a {type(key).__name__}, which cannot be a key here") from None
        except Exception as error:
            raise _unhashable(error, f"the map key {name[:60]!r}") from error
        return key

    def _bytes(self, node: dict[str, Any]) -> Any:
        id, found = self._reference(node)
        if found is not None:
            return found
        content = node.get("^Value")
        if type(content) is not list:
            return self._opaque(node, id)
        try:
            made = array("b", content).tobytes()
        except (TypeError, OverflowError) as error:
            raise BadRequest("[B holds whole numbers from -128 to 127") from error
        if id is not None:
            self._known[id] = made
        return made

    # -- values around others

    def _optional(self, node: dict[str, Any]) -> Any:
        return self.value(node.get("^Value"))

    def _object(self, node: dict[str, Any]) -> Any:
        """``java.lang.Object`` with a null is how Errai writes null outside of a message."""
        if "^Value" in node and node["^Value"] is None:
            return None
        return self._opaque(node, self._reference(node)[0])


def _check_alike(count: int) -> None:
    """
    Raises:
        BadRequest: So many have one hash.
    """
    if count > _ALIKE:
        raise BadRequest(f"more than {_ALIKE} elements of a set, or keys of a map, have the same hash")


def _unhashable(error: Exception, what: str) -> BadRequest:
    """An object of the application's that has no hash yet, because it is within itself, or by a hash of its own that fails."""
    return error if isinstance(error, BadRequest) else BadRequest(f"{what} has no hash: {misfit(error)}")


READERS: Final[Mapping[str, Read]] = {
    "java.lang.Integer": read_integer,
    "java.util.ArrayList": ValueReading._list,
    "java.util.LinkedHashMap": ValueReading._map,
    "java.util.HashMap": ValueReading._map,
    "java.lang.Long": read_integer,
    "java.lang.Double": read_float,
    "java.lang.Boolean": read_boolean,
    "java.util.Date": read_date,
    "java.lang.Byte": read_integer,
    "java.lang.Short": read_integer,
    "java.lang.Float": read_float,
    "java.lang.Character": read_text,
    "java.lang.String": read_text,
    "java.lang.StringBuilder": read_text,
    "java.lang.StringBuffer": read_text,
    "java.lang.Object": ValueReading._object,
    "java.math.BigInteger": read_big_integer,
    "java.math.BigDecimal": read_big_decimal,
    "java.sql.Date": read_date,
    "java.sql.Time": read_date,
    "java.sql.Timestamp": read_date,
    "java.util.Optional": ValueReading._optional,
    "[B": ValueReading._bytes,
    **dict.fromkeys(
        (
            "java.util.List",
            "java.util.Collection",
            "java.util.LinkedList",
            "java.util.Vector",
            "java.util.Stack",
            "java.util.Queue",
            "java.util.PriorityQueue",
            "java.util.AbstractList",
            "java.util.Arrays$ArrayList",
            "java.util.Collections$UnmodifiableList",
            "java.util.Collections$SynchronizedList",
            "java.util.Collections$SingletonList",
            "java.util.Collections$EmptyList",
        ),
        ValueReading._list,
    ),
    **dict.fromkeys(
        ("java.util.Set", "java.util.HashSet", "java.util.LinkedHashSet", "java.util.SortedSet", "java.util.TreeSet"),
        ValueReading._set,
    ),
    **dict.fromkeys(
        ("java.util.Map", "java.util.SortedMap", "java.util.TreeMap", "java.util.concurrent.ConcurrentHashMap"),
        ValueReading._map,
    ),
}
