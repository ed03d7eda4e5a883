"""Connections inside another connection."""
