"""Interfaces for third-party protocols and transports.

They are `typing.Protocol` classes, so plugins don't need to inherit from them. Register a plugin as an entry point in the group
``polybus.protocols`` or ``polybus.transports``. The name of the entry point is the plugin's name in URLs.

A **codec** converts between frames and messages. It has no role, state or clock, so recorded traffic, relays and the command
line can use it without a connection. A **session** wraps a codec and implements a single connection: the handshake, requests
and pending ids. It does no I/O either. The link calls it with frames and the current time, and gets back frames and events. A
**transport** carries whole frames over a connection and delivers incoming ones to its **receiver**.
"""

from .features import (
    CodecFeatures,
    EndpointFeatures,
    Fabric,
    FramingFeatures,
    Hear,
    ProtocolFeatures,
    ReceiverFeatures,
    Sample,
    SessionFeatures,
    TransportFeatures,
)
from .mesh import Due, Lost, NodeJoined, NodeLeft, ToAll, ToClient, ToGroup, ToNode, ToUser
from .protocols import (
    Capabilities,
    CloseWanted,
    Codec,
    Confirmed,
    Dissector,
    FrameField,
    Frames,
    OtherServers,
    PeerClosed,
    PeerOpened,
    ProtocolAdapter,
    QuietSession,
    Ready,
    Refused,
    Role,
    Session,
    SessionEvent,
    SessionOutput,
    Undelivered,
)
from .transports import (
    Admission,
    AsgiApp,
    Closed,
    Connector,
    DialOptions,
    FrameCutter,
    Framing,
    Gate,
    Handshake,
    Host,
    HttpBinding,
    Identity,
    Listening,
    ListenOptions,
    Receiver,
    Reservation,
    Transport,
    TransportAdapter,
    WebEndpoint,
    WebRoute,
)

__all__ = [
    "Admission", "AsgiApp", "Capabilities", "CloseWanted", "Closed", "Codec", "CodecFeatures", "Confirmed", "Connector",
    "DialOptions", "Dissector", "Due", "EndpointFeatures", "Fabric", "FrameCutter", "FrameField", "Frames", "Framing",
    "FramingFeatures", "Gate", "Handshake", "Hear", "Host", "HttpBinding", "Identity", "ListenOptions", "Listening", "Lost",
    "NodeJoined", "NodeLeft", "OtherServers", "PeerClosed", "PeerOpened", "ProtocolAdapter", "QuietSession", "ProtocolFeatures",
    "Ready", "Receiver", "ReceiverFeatures", "Refused", "Reservation", "Role", "Sample", "Session", "SessionEvent",
    "SessionFeatures", "SessionOutput", "ToAll", "ToClient", "ToGroup", "ToNode", "ToUser", "Transport", "TransportAdapter",
    "TransportFeatures", "Undelivered", "WebEndpoint", "WebRoute",
]  # fmt: skip
