"""NATS, as its clients speak it: polybus connects to a NATS server, and is none.

Publications, requests and queue groups are those of the network at the other end: a request is answered by whichever program
there has subscribed, and a handler is a member of a group that shares requests.
"""

from .adapter import Nats

__all__ = ["Nats"]
