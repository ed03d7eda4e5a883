"""Captures on disk: segments, folders, reading, recovery and export."""
