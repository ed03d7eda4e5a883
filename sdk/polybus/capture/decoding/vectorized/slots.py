"""Slots: the places at which frames may differ without meaning something else. See `templates`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from attrs import frozen

ID, KEY, MS, BODY, DERIVED = range(5)
"""Kinds of slots: an id, the id of what is answered, milliseconds, a body, and what follows from the sizes of the others."""


@frozen(eq=False)
class SlottedBodies:
    """The bodies of some frames, where there are some."""

    valid: Any
    """True for each that the codec takes, and where there is none."""
    kinds: Any
    """The kind of each: 0 where there is none."""
    data: Callable[[Any], pa.Array]
    """The bytes that an event has of some of them (by their places), null where there is none."""
    probes: Sequence[tuple[bytes, bytes]]
    """Two bodies of each kind as they stand in a frame, from kind 1 on."""
    decoded: Sequence[tuple[bytes, bytes]]
    """The same as an event has them."""


@frozen(eq=False)
class Slots:
    """The slots of some frames; all by the places of `rows`."""

    rows: Any
    """Places of the frames (`numpy.ndarray`)."""
    places: Sequence[tuple[int, Any, Any]]
    """Kind, begin and end, in the order in which they stand in every frame. One that a frame does not have is of no length."""
    bodies: Callable[[Any, Any], SlottedBodies]
    """Gives the bodies between some begins and ends."""
    numbers: Any = None
    """The numbers in the slots for milliseconds."""
    id_pattern: str = r"^[0-9A-Za-z-]{1,36}$"
    """Matches the ids that are not looked at any further."""
    assemble: Callable[[Sequence[bytes], dict[int, bytes]], bytes] | None = None
    """Makes a frame of pieces and the contents of the slots, where it is not enough to put them together."""
