"""CSB (Client Server Broker): requests and responses with numbered actions, in both directions, with or without a broker.

`docs/reference/csb.md` describes every byte. Actions from 0xFFFF0000 are polybus extensions. Any peer may use the first five,
whereas the others are only for polybus peers.
"""

from .adapter import Csb

__all__ = ["Csb"]
