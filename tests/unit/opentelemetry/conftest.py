"""Spans and measurements of a test."""

import pytest

from .spans import Traces


@pytest.fixture
def traces() -> Traces:
    return Traces()
