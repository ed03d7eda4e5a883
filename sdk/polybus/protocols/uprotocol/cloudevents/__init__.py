"""CloudEvents in protobuf and JSON: readers and writers."""
