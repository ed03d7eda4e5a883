"""The NATS client protocol. polybus connects to a NATS server and does not act as one.

Publications, requests and queue groups work as usual in NATS: any client may answer a request, and handlers are members of a
queue group that shares the requests.
"""

from .adapter import Nats

__all__ = ["Nats"]
