"""J.REP, the protocol of ErraiBus, in the document's dialect and in Errai's own.

A payload is a JSON array of messages, and a message is an object of parts. ``[]`` only counts as activity.
`docs/reference/jrep.md` has the parts of each message, and `handshake` the tables of the handshakes.
"""

from .adapter import Jrep
from .formats import Parts
from .java import JavaEnum, JavaObject, JavaTypes
from .rpc import RemoteInterface
from .states import BusState, bus_states

__all__ = ["BusState", "JavaEnum", "JavaObject", "JavaTypes", "Jrep", "Parts", "RemoteInterface", "bus_states"]
