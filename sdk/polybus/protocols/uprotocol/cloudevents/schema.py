"""The classes of ``cloudevents.proto`` beside this module, made of its descriptor when they are first needed.

What protoc writes for Python runs with two generations of the package protobuf alone; a descriptor with each. It is the only
file in the set that this writes, in this folder, with any protoc (grpcio-tools)::

    python -m grpc_tools.protoc -I. --descriptor_set_out=cloudevents.set cloudevents.proto
"""

from __future__ import annotations

from functools import cache
from typing import Any, Final

from ..._protobuf.any_body import known_class

_DESCRIPTOR: Final = (
    b"\n\x11cloudevents.proto\x12\x11io.cloudevents.v1\x1a\x19google/protobuf/any.proto\x1a\x1fgoogle/protobuf/timestam"
    b'p.proto"\xb0\x04\n\nCloudEvent\x12\n\n\x02id\x18\x01 \x01(\t\x12\x0e\n\x06source\x18\x02 \x01(\t\x12\x14\n\x0cspe'
    b"c_version\x18\x03 \x01(\t\x12\x0c\n\x04type\x18\x04 \x01(\t\x12A\n\nattributes\x18\x05 \x03(\x0b2-.io.cloudevents"
    b".v1.CloudEvent.AttributesEntry\x12\x15\n\x0bbinary_data\x18\x06 \x01(\x0cH\x00\x12\x13\n\ttext_data\x18\x07 \x01("
    b"\tH\x00\x12*\n\nproto_data\x18\x08 \x01(\x0b2\x14.google.protobuf.AnyH\x00\x1ai\n\x0fAttributesEntry\x12\x0b\n"
    b"\x03key\x18\x01 \x01(\t\x12E\n\x05value\x18\x02 \x01(\x0b26.io.cloudevents.v1.CloudEvent.CloudEventAttributeValue"
    b":\x028\x01\x1a\xd3\x01\n\x18CloudEventAttributeValue\x12\x14\n\nce_boolean\x18\x01 \x01(\x08H\x00\x12\x14\n\nce_i"
    b"nteger\x18\x02 \x01(\x05H\x00\x12\x13\n\tce_string\x18\x03 \x01(\tH\x00\x12\x12\n\x08ce_bytes\x18\x04 \x01(\x0cH"
    b"\x00\x12\x10\n\x06ce_uri\x18\x05 \x01(\tH\x00\x12\x14\n\nce_uri_ref\x18\x06 \x01(\tH\x00\x122\n\x0cce_timestamp"
    b'\x18\x07 \x01(\x0b2\x1a.google.protobuf.TimestampH\x00B\x06\n\x04attrB\x06\n\x04data"@\n\x0fCloudEventBatch\x12-'
    b"\n\x06events\x18\x01 \x03(\x0b2\x1d.io.cloudevents.v1.CloudEventb\x06proto3"
)


@cache
def cloud_event_classes() -> tuple[type[Any], type[Any]]:
    """``CloudEvent`` and ``CloudEventBatch``: ours, or those that another package has registered under these names."""
    from google.protobuf import any_pb2, descriptor_pool, timestamp_pb2  # noqa: F401  # which it imports

    if known_class("io.cloudevents.v1.CloudEvent") is None:
        descriptor_pool.Default().AddSerializedFile(_DESCRIPTOR)
    event, batch = known_class("io.cloudevents.v1.CloudEvent"), known_class("io.cloudevents.v1.CloudEventBatch")
    assert event is not None and batch is not None
    return event, batch
