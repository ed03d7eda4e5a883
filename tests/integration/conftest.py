"""Shared by the second tier: tests that must run in the same worker of pytest-xdist (`--dist loadgroup`)."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
TOGETHER = ("spark",)
"""Folders whose tests share what is expensive: a JVM."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A module's tests share its servers and its browser."""
    for item in items:
        if item.path.is_relative_to(HERE):
            folder = item.path.relative_to(HERE).parts[0]
            item.add_marker(pytest.mark.xdist_group(folder if folder in TOGETHER else str(item.path)))
