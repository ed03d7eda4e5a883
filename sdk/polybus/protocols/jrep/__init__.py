"""J.REP: ErraiBus's protocol."""

from .adapter import Jrep
from .formats import Parts
from .java import JavaEnum, JavaObject, JavaTypes
from .rpc import RemoteInterface
from .states import BusState, bus_states

__all__ = ["BusState", "JavaEnum", "JavaObject", "JavaTypes", "Jrep", "Parts", "RemoteInterface", "bus_states"]
