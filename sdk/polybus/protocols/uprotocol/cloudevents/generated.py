"""The package ``protobuf``, loaded when something needs it: the generated ``CloudEvent``, and messages of the application.

``cloudevents_pb2.py`` was made from ``cloudevents.proto`` beside it with protoc 30 (grpcio-tools 1.72.2), in this folder::

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. cloudevents.proto

In the ``.pyi``, ``Mapping`` was then given its type arguments. What protoc 30 makes runs with protobuf 6.30 and 7; what a later
one makes would ask for a later package.
"""

from __future__ import annotations

from functools import cache
from typing import Any


@cache
def cloud_event_classes() -> tuple[type[Any], type[Any]]:
    """``CloudEvent`` and ``CloudEventBatch``: ours, or those that another package has registered under these names."""
    try:
        from . import cloudevents_pb2 as generated
    except TypeError:  # the pool has the same names from another file, for example of an older up-python
        event, batch = known_class("io.cloudevents.v1.CloudEvent"), known_class("io.cloudevents.v1.CloudEventBatch")
        if event is None or batch is None:
            raise
        return event, batch
    return generated.CloudEvent, generated.CloudEventBatch


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
