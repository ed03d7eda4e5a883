"""Handlers: their signatures, call plans and registration."""
