"""Messages of ``org.eclipse.uprotocol.vehicle.body.access.v1``, as far as the example needs them.

A real project generates this module from its ``.proto`` files; here the description is written out, so that no build is
needed.
"""

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE = "org.eclipse.uprotocol.vehicle.body.access.v1"
_Field = descriptor_pb2.FieldDescriptorProto
_MESSAGES = {
    "Door": {"instance": _Field.TYPE_STRING, "is_locked": _Field.TYPE_BOOL, "position": _Field.TYPE_INT32},
    "UpdateDoorRequest": {"instance": _Field.TYPE_STRING, "is_locked": _Field.TYPE_BOOL, "position": _Field.TYPE_INT32},
}


def _description():
    file = descriptor_pb2.FileDescriptorProto(name="example/body_access.proto", package=PACKAGE, syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(fields.items(), start=1):
            message.field.add(name=field, number=number, type=kind, label=_Field.LABEL_OPTIONAL)
    return file


_pool = descriptor_pool.Default()
_pool.Add(_description())
Door, UpdateDoorRequest = (
    message_factory.GetMessageClass(_pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in _MESSAGES
)
