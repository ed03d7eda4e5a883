"""The NATS client protocol: polybus connects to a NATS server and does not act as one.

Publications, requests and queue groups work as in NATS: any program on the network may answer a request, and a handler is
a member of a queue group that shares requests.
"""

from .adapter import Nats

__all__ = ["Nats"]
