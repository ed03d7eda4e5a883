"""Frames cut at the places where they may differ without meaning something else. See `alike`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
from attrs import frozen

__all__ = ["BODY", "DERIVED", "ID", "KEY", "MS", "Bodies", "Cut"]

ID, KEY, MS, BODY, DERIVED = range(5)
"""Kinds of holes: an id, the id of what is answered, milliseconds, a body, and what follows from the sizes of the others."""


@frozen(eq=False)
class Bodies:
    """The bodies of some frames, where there are some."""

    sound: Any
    """Whether each is one that the codec takes (or there is none)."""
    sorts: Any
    """Of which sort each is: 0 where there is none."""
    data: Callable[[Any], pa.Array]
    """The bytes that an event has of some of them (by their places), null where there is none."""
    probes: Sequence[tuple[bytes, bytes]]
    """Two bodies of each sort as they stand in a frame, from sort 1 on."""
    said: Sequence[tuple[bytes, bytes]]
    """The same as an event has them."""


@frozen(eq=False)
class Cut:
    """Where frames have holes; all by the places of `rows`."""

    rows: Any
    """Which of the frames (`numpy.ndarray`)."""
    holes: Sequence[tuple[int, Any, Any]]
    """Kind, begin and end, in the order in which they stand in every frame. One that a frame does not have is of no length."""
    bodies: Callable[[Any, Any], Bodies] | None
    """Of the bodies between some begins and ends."""
    numbers: Any = None
    """What stands in the holes for milliseconds."""
    ids: str = r"^[0-9A-Za-z-]{1,36}$"
    """What ids look like that are not looked at any further."""
    joined: Callable[[Sequence[bytes], dict[int, bytes]], bytes] | None = None
    """Makes a frame of pieces and what is in the holes, where it is not enough to put them together."""
