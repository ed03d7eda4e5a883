"""uProtocol: CloudEvents messages with their rules."""

from .ids import IdFactory, id_time_ms

__all__ = ["IdFactory", "id_time_ms"]
