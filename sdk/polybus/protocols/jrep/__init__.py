"""J.REP: ErraiBus's protocol."""

from .adapter import Jrep
from .formats import Parts
from .java import JavaEnum, JavaObject, JavaTypes

__all__ = ["JavaEnum", "JavaObject", "JavaTypes", "Jrep", "Parts"]
