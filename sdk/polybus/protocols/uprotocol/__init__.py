"""The older uProtocol, which uses CloudEvents messages.

Each frame is one CloudEvent 1.0.2 in JSON or protobuf. See `docs/reference/uprotocol.md`.
"""

from .._uprotocol import IdFactory, id_time_ms
from .adapter import UProtocol

__all__ = ["IdFactory", "UProtocol", "id_time_ms"]
