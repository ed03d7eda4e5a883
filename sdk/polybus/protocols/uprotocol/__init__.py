"""uProtocol: CloudEvents messages with their rules.

On the wire is one CloudEvent 1.0.2 a frame, in JSON or protobuf; `docs/reference/uprotocol.md` describes it in full.
"""

from .._uprotocol import IdFactory, id_time_ms
from .adapter import UProtocol

__all__ = ["IdFactory", "UProtocol", "id_time_ms"]
