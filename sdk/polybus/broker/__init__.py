"""The broker of CSB. It uses transports and codecs without a bus, and never decodes a payload."""

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
