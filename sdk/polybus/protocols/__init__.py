"""Protocols, each consisting of a pure codec and a session that does no I/O."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .._util.lazy_names import lazy_names

if TYPE_CHECKING:
    from .csb import Csb
    from .jrep import Jrep
    from .nats import Nats
    from .ubre import Ubre
    from .up import Up
    from .uprotocol import UProtocol

__all__ = ["Csb", "Jrep", "Nats", "UProtocol", "Ubre", "Up"]

__getattr__: Callable[[str], Any] = lazy_names(
    __name__,
    {".csb": ["Csb"], ".jrep": ["Jrep"], ".nats": ["Nats"], ".ubre": ["Ubre"], ".up": ["Up"], ".uprotocol": ["UProtocol"]},
)
