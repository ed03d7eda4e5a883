"""Times of the correlation: for an answer to come, and for an id to be forgotten."""

from __future__ import annotations

from typing import Final

import attrs

LONGEST_MS: Final = 100 * 366 * 86_400_000
"""A ttl beyond these hundred years (ms) counts as this: the largest that a peer can send would in ns not fit 64 bits."""


@attrs.frozen
class MatchTimeouts:
    """Times for an answer to come, and for an id to be forgotten."""

    timeout: float = attrs.field(default=30.0, validator=attrs.validators.gt(0))
    """Seconds after which an answer is late, where the request has neither deadline nor ttl."""
    horizon: float = attrs.field(default=attrs.Factory(lambda self: 10 * self.timeout, takes_self=True))
    """Seconds of silence after which an id is forgotten: what comes with it later is an orphan, or new. A request with a longer
    deadline is remembered for as long as that. What is open at the end of a run is carried over to the next ones for so
    long."""

    def __attrs_post_init__(self) -> None:
        if self.horizon < self.timeout:
            raise ValueError(f"horizon={self.horizon} is shorter than timeout={self.timeout}: no answer could be late")

    @property
    def timeout_ns(self) -> int:
        """The timeout in nanoseconds."""
        return round(self.timeout * 1e9)

    @property
    def horizon_ns(self) -> int:
        """The horizon in nanoseconds."""
        return round(self.horizon * 1e9)
