"""The NATS client protocol. polybus connects to a NATS server and does not act as one.

Publications, requests and queue groups work as usual in NATS. Any client may answer a request, and handlers join a queue group,
which distributes the requests among its members.
"""

from .adapter import Nats

__all__ = ["Nats"]
