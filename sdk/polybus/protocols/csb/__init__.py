"""CSB, Client Server Broker: numbered actions, requests and responses in both directions, with or without a broker.

`docs/reference/csb.md` has each byte, and the actions from 0xFFFF0000, which are ours. What goes to those up to 4 any peer may
read and write; the rest passes only between polybus peers: after a hello, or on these actions alone.
"""

from .adapter import Csb

__all__ = ["Csb"]
