"""Interfaces of fabrics: nets of nodes in which a message goes by its key to whoever has asked for such keys.

A fabric has no peers that could be told apart. A transport that leads to one has a method `TransportFeatures.hear`, which the
`Fabric` of a protocol hands to its sessions there: they say with it what is to be heard.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from attrs import frozen

from ..limits import Limits

if TYPE_CHECKING:
    from .protocols import Role, Session

Hear: TypeAlias = Callable[[Sequence[str]], None]
"""Takes the expressions of all keys that are to be heard from now on, in place of those before. In an expression ``*`` stands
for any one segment. What several of them let through is heard once."""
LEVELS: Final = 7
"""Priorities of a fabric, from 0, which waits for all others, to 6, which waits for none."""


@frozen
class Sample:
    """One message on a fabric.

    Attributes:
        key: Its name, by which it is heard: segments between slashes.
        attachment: What goes beside the payload; None where there is nothing.
        payload: The content.
        level: Its priority, 0 to 6.
    """

    key: str
    attachment: bytes | None
    payload: bytes
    level: int

    @property
    def size(self) -> int:
        """Bytes that it takes while it waits, all its parts together."""
        return len(self.key) + len(self.attachment or b"") + len(self.payload)


class Fabric(Protocol):
    """Form of a protocol on a fabric: its frames as samples, and sessions that say what they want to hear."""

    def session(self, role: Role, limits: Limits, rng: random.Random | None, hear: Hear) -> Session:
        """A session on a fabric; as `ProtocolAdapter.session`.

        Args:
            role: Both ends of a fabric speak alike, most often.
            limits: Of the bus.
            rng: Makes ids.
            hear: Called by the session when it starts, and whenever it wants to hear something else.
        """
        ...

    def sample(self, frame: bytes) -> Sample:
        """The sample of a frame that a session has made."""
        ...

    def sender(self, key: str) -> str:
        """Name of the sender of a sample, as far as its key says: what waits is limited for each. Called from any thread."""
        ...

    def frame(self, sample: Sample, limits: Limits) -> bytes | None:
        """The frame of a sample; None of one in a form of others on the same fabric, which is left out without a word.

        Raises:
            RemoteProtocolError: It is none: too large, cut off, or its key is not that of its content.
        """
        ...
