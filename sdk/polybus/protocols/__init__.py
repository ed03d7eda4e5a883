"""The protocols: in each a pure codec and, on it, a session without I/O."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .csb import Csb
    from .jrep import Jrep
    from .ubre import Ubre
    from .uprotocol import UProtocol

__all__ = ["Csb", "Jrep", "UProtocol", "Ubre"]

_HOMES = {"Csb": "csb", "Jrep": "jrep", "UProtocol": "uprotocol", "Ubre": "ubre"}


def __getattr__(name: str) -> Any:
    """Loads a protocol when it is first asked for."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{home}"), name)
