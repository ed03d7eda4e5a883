"""J.REP, the ErraiBus protocol, in the document's dialect and in Errai's own dialect.

A payload is a JSON array of messages, and a message is an object of parts. An empty array, ``[]``, is only a sign of life.
`docs/reference/jrep.md` lists the parts of each message, and `handshake` contains the transition tables.
"""

from .adapter import Jrep
from .formats import Parts
from .java import JavaEnum, JavaObject, JavaTypes
from .rpc import RemoteInterface
from .states import BusState, bus_states

__all__ = ["BusState", "JavaEnum", "JavaObject", "JavaTypes", "Jrep", "Parts", "RemoteInterface", "bus_states"]
