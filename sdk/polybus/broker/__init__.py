"""A CSB broker that forwards frames between clients and servers. It does not need a bus and never decodes payloads."""

from ._broker import Broker
from .events import BrokerEvent, BrokerStats, ClientJoined, ClientLeft, FrameDropped, ServerJoined, ServerLeft

__all__ = [
    "Broker",
    "BrokerEvent",
    "BrokerStats",
    "ClientJoined",
    "ClientLeft",
    "FrameDropped",
    "ServerJoined",
    "ServerLeft",
]
