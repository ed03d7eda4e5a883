"""Replay of recorded messages."""
