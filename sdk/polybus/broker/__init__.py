"""The CSB broker, which forwards frames without a bus and without decoding payloads."""

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
