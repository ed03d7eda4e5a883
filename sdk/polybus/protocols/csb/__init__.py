"""CSB, Client Server Broker: numbered actions, requests and responses in both directions, with or without a broker.

`docs/reference/csb.md` has each byte, and the actions from 0xFFFF0000, which are polybus extensions. Any peer may use actions
up to 4 of them; the others only polybus peers, after a hello or on these actions.
"""

from .adapter import Csb

__all__ = ["Csb"]
