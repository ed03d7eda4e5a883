"""The interfaces for third parties: protocols and transports that polybus does not know.

They are `typing.Protocol` classes: nothing has to be inherited. A distribution offers its own by entry points in the groups
``polybus.protocols`` and ``polybus.transports``; the name of the entry point is the word in the URL.

A **codec** translates between one frame and messages. It is pure: no role, no state, no clock; so recorded traffic, the
command line and relays use it alone. A **session** stands on a codec and knows one connection: who asks, which ids are
pending, the handshake. It does no I/O either: the link calls it with frames and the time and takes frames and events away.
A **transport** is one connection that carries whole frames, and calls its **receiver**.
"""

from .admission import Admission, Gate, Handshake, Identity
from .clusters import Due, Lost, NodeJoined, NodeLeft, ToAll, ToClient, ToGroup, ToNode, ToUser
from .endpoints import Connector, DialOptions, Listening, ListenOptions, TransportAdapter
from .fabrics import Fabric, Hear, Sample
from .features import (
    CodecFeatures,
    EndpointFeatures,
    FramingFeatures,
    ProtocolFeatures,
    ReceiverFeatures,
    SessionFeatures,
    TransportFeatures,
)
from .framing import FrameCutter, Framing
from .protocols import (
    Capabilities,
    CloseWanted,
    Codec,
    Confirmed,
    Dissector,
    FrameField,
    OtherServers,
    PeerClosed,
    PeerOpened,
    ProtocolAdapter,
    Ready,
    Refused,
    Role,
    Session,
    SessionEvent,
    Undelivered,
)
from .transports import Closed, Host, Receiver, Reservation, Transport
from .web import AsgiApp, HttpBinding, WebEndpoint, WebRoute

__all__ = [
    "Admission",
    "AsgiApp",
    "Capabilities",
    "CloseWanted",
    "Closed",
    "Codec",
    "CodecFeatures",
    "Confirmed",
    "Connector",
    "DialOptions",
    "Dissector",
    "Due",
    "EndpointFeatures",
    "Fabric",
    "FrameCutter",
    "FrameField",
    "Framing",
    "FramingFeatures",
    "Gate",
    "Handshake",
    "Hear",
    "Host",
    "HttpBinding",
    "Identity",
    "ListenOptions",
    "Listening",
    "Lost",
    "NodeJoined",
    "NodeLeft",
    "OtherServers",
    "PeerClosed",
    "PeerOpened",
    "ProtocolAdapter",
    "ProtocolFeatures",
    "Ready",
    "Receiver",
    "ReceiverFeatures",
    "Refused",
    "Reservation",
    "Role",
    "Sample",
    "Session",
    "SessionEvent",
    "SessionFeatures",
    "ToAll",
    "ToClient",
    "ToGroup",
    "ToNode",
    "ToUser",
    "Transport",
    "TransportAdapter",
    "TransportFeatures",
    "Undelivered",
    "WebEndpoint",
    "WebRoute",
]
