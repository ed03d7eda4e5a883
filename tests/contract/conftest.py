"""Tests that depend on the event loop run on each, in every tier."""

from tests.loops import every_loop  # noqa: F401  # a fixture
