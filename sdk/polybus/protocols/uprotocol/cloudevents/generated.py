"""The package ``protobuf``, loaded when something needs it: the generated ``CloudEvent``.

``cloudevents_pb2.py`` was made from ``cloudevents.proto`` beside it with protoc 30 (grpcio-tools 1.72.2), in this folder::

    python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. cloudevents.proto

In the ``.pyi``, ``Mapping`` was then given its type arguments. What protoc 30 makes runs with protobuf 6.30 and 7; what a later
one makes would ask for a later package.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..._protobuf.classes import known_class


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
