"""Stores: publications that the engine of a cluster keeps."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any, Final

from attrs import field, frozen

from ..._util.pattern_index import tokens_overlap
from ..._validation import check_count, seconds, shown
from ...subjects import check_pattern, is_pattern, wire_pattern

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,100}")
_DEAD: Final = "dead"
"""The name of the store of dead letters, which is nobody else's."""
_LONGEST_ID: Final = 256
_LONGEST: Final = timedelta(days=290 * 365).total_seconds()
"""Seconds that 64 bits of nanoseconds hold."""
_SHORTEST_AGE: Final = 0.1
"""Seconds, and bytes, servers: what the engine takes."""
_LARGEST: Final = (1 << 63) - 1
_SERVERS: Final = 5


def as_seconds(value: Any, name: str) -> float:
    """Seconds of a number of them, or of a `timedelta`.

    Raises:
        TypeError, ValueError: It is none, or not more than none at all.
    """
    found = value.total_seconds() if isinstance(value, timedelta) else seconds(value, name)
    if not 0 < found < _LONGEST:
        raise ValueError(f"{name}={shown(value)}: more than 0 seconds, and less than {_LONGEST:.0f}")
    return found


def check_publication_id(id: object) -> None:
    """Raise TypeError or ValueError for what cannot be the id of a publication."""
    if not isinstance(id, str):
        raise TypeError(f"id={shown(id)}: text, for example id=str(order.id), not {type(id).__name__}")
    if not 0 < len(id) <= _LONGEST_ID or not id.isprintable() or id != id.strip():
        raise ValueError(f"id={id!r:.60}: 1 to {_LONGEST_ID} printable characters, with no blank at an end")


def _age(store: Any, attribute: Any, value: Any) -> None:
    if value is not None:
        if as_seconds(value, attribute.name) < _SHORTEST_AGE:
            raise ValueError(f"{attribute.name}={shown(value)}: at least {_SHORTEST_AGE} seconds")


def _window(store: Any, attribute: Any, value: Any) -> None:
    as_seconds(value, attribute.name)


def _size(store: Any, attribute: Any, value: Any) -> None:
    if value is not None:
        check_count(value, attribute.name, 1, _LARGEST)


def _servers(store: Any, attribute: Any, value: Any) -> None:
    check_count(value, attribute.name)
    if value > _SERVERS:
        raise ValueError(f"{attribute.name}={shown(value)}: 1 to {_SERVERS}")


def _yes_or_no(store: Any, attribute: Any, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"Store({attribute.name}={shown(value)}): True or False, not {type(value).__name__}")


@frozen(init=False)
class Store:
    """Publications that the engine of a cluster keeps: ``Store("orders", "orders.>", max_age=timedelta(days=7))``.

    `Bus.publish` of such a subject returns when the engine has stored it. A store is made where there is none; one that is
    there and differs is an error, and is never changed.

    Args:
        name: 1 to 100 letters, digits, ``-`` and ``_``. The stream of the engine is called so, behind the name of the cluster
            and ``-``.
        subjects: The patterns of what is stored; URIs stand there whole. No two of a cluster keep the same subject.
        max_age: After which publications are removed, in seconds or as a `timedelta`; None keeps them.
        max_bytes: Of the store: when it is full, `Bus.publish` fails with `QueueFull`. None is as much as the engine allows.
        replicas: Servers that keep each publication, at most 5: an odd number, as many as may fail twice and one.
        dedup: Seconds, or a `timedelta`, in which a publication that comes again under the same id is stored once; no longer
            than `max_age`.
        work: Remove what a durable handler has dealt with: the store is a queue of work. Each publication is then for one
            durable handler: several have no subject in common, and begin with all that is stored.

    Raises:
        TypeError, ValueError: An argument is not what it should be.
        LocalProtocolError, ReservedSubject: A pattern is not valid.
    """

    name: str
    subjects: tuple[str | int, ...]
    max_age: float | timedelta | None = field(default=None, validator=_age)
    max_bytes: int | None = field(default=None, validator=_size)
    replicas: int = field(default=1, validator=_servers)
    dedup: float | timedelta = field(default=120.0, validator=_window)
    work: bool = field(default=False, validator=_yes_or_no)

    def __init__(
        self,
        name: str,
        *subjects: str | int,
        max_age: float | timedelta | None = None,
        max_bytes: int | None = None,
        replicas: int = 1,
        dedup: float | timedelta = 120.0,
        work: bool = False,
    ) -> None:
        check_store_name(name)
        if name == _DEAD:
            raise ValueError(f"Store({name!r}): that name is kept for dead letters; take another")
        if not subjects:
            raise ValueError(f"Store({name!r}): a pattern of what is stored, for example Store({name!r}, '{name}.>')")
        for subject in subjects:
            check_pattern(subject)
            if isinstance(subject, str) and "/" in subject and is_pattern(subject):
                raise ValueError(f"Store({name!r}, {subject!r}): a pattern of URIs would keep all of them: name each whole")
        for number, subject in enumerate(subjects):
            other = overlapping(subject, subjects[:number])
            if other is not None:
                raise ValueError(f"Store({name!r}): {other!r} and {subject!r} have subjects in common: leave out the narrower")
        self.__attrs_init__(name, subjects, max_age, max_bytes, replicas, dedup, work)  # pyright: ignore[reportAttributeAccessIssue]  # attrs makes it


def overlapping(subject: str | int, others: Iterable[str | int]) -> str | int | None:
    """Find the first of some patterns that has subjects in common with another one; None where none has."""
    tokens = _tokens(subject)
    return next((other for other in others if tokens_overlap(_tokens(other), tokens)), None)


def _tokens(subject: str | int) -> list[str]:
    """Tokens as the engine has them, where wildcards cover numbers and URIs, too."""
    if isinstance(subject, int):
        return [f"%i{subject}"]
    name = str(wire_pattern(subject))
    return ["%u", *name.split("/")] if "/" in name else name.split(".")


def check_store_name(name: object) -> None:
    """Raise TypeError or ValueError for what cannot be the name of a store."""
    if not isinstance(name, str):
        raise TypeError(f"Store({shown(name)}): a name, for example Store('orders', 'orders.>'), not {type(name).__name__}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"Store({name!r:.60}): 1 to 100 letters, digits, '-' and '_'")
