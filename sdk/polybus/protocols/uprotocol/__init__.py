"""uProtocol: CloudEvents messages with their rules."""

from .adapter import UProtocol
from .ids import IdFactory, id_time_ms

__all__ = ["IdFactory", "UProtocol", "id_time_ms"]
