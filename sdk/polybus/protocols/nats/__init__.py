"""The NATS client protocol. polybus connects to a NATS server and does not act as one.

Publications, requests and queue groups work as usual in NATS. Any client may answer a request. Handlers join a queue group, and
the server distributes requests among its members.
"""

from .adapter import Nats

__all__ = ["Nats"]
