"""The broker of CSB: transports and codecs without a bus. It never decodes a payload."""

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
