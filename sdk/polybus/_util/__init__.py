"""Helpers without knowledge of buses."""
