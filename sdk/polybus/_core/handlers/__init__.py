"""Handlers: their signatures, how to call them, and how they are registered and found."""
