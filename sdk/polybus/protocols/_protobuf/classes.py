"""Messages of the application: their classes, by the package ``protobuf``, which is loaded when something needs it."""

from __future__ import annotations

from typing import Any


def known_class(name: str) -> type[Any] | None:
    """The class of a message by its full name, where the program has it; None otherwise."""
    from google.protobuf import descriptor_pool, message_factory

    try:
        descriptor = descriptor_pool.Default().FindMessageTypeByName(name)
    except KeyError:
        return None
    return message_factory.GetMessageClass(descriptor)


def is_message(value: Any) -> bool:
    """True if a value is a message of protocol buffers, without loading the package."""
    return hasattr(value, "DESCRIPTOR") and hasattr(value, "SerializeToString")
