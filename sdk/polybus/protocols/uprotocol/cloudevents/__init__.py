"""Readers and writers of CloudEvents in protobuf and JSON."""
