"""Helpers that know nothing of buses."""
