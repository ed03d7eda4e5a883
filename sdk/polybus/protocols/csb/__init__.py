"""CSB, Client Server Broker: requests and responses with numbered actions, in both directions, with or without a broker.

`docs/reference/csb.md` describes every byte. Actions from 0xFFFF0000 are polybus extensions: any peer may use the first five,
and only polybus peers use the others.
"""

from .adapter import Csb

__all__ = ["Csb"]
