"""For the tests of programs that use polybus.

`pair` joins two buses in one process through the real codec; `Faults` makes the connection between them bad in a way that a
seed repeats.
"""

from .faults import Faults
from .pairing import pair

__all__ = ["Faults", "pair"]
