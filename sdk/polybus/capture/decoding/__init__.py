"""Decoding of recorded frames to events."""
