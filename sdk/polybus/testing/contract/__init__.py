"""Our contract suite: what every protocol and every transport has to do, as tests that pytest collects."""

from .protocol import protocol_suite
from .transport import transport_suite

__all__ = ["protocol_suite", "transport_suite"]
