"""Decoding of many frames of one template at a time."""
