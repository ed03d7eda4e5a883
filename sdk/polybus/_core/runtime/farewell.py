"""The reason with which a bus that has drained ends its connections, by which others know that it has answered all."""

from typing import Final

ALL_ANSWERED: Final = "the bus is leaving"
"""Every request that the bus had read was answered before this was said: one that has no answer has not been read."""
