"""The document of the shop."""

from typing import Any

import pytest

from polybus.asyncapi import document

from .shop import make_bus


@pytest.fixture(scope="session")
def shop() -> dict[str, Any]:
    return document(make_bus(), title="Shop", version="2.1.0", description="What `user.get` is.\n\n* one\n* two")
