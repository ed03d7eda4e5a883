"""Tests of what depends on the event loop: on each, in every tier."""

from tests.loops import every_loop  # noqa: F401
