"""uvicorn runs on asyncio, with and without uvloop."""

from importlib.util import find_spec
from typing import Any

import pytest

from .support import OverAsgi

_without_uvloop = pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed")


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="asyncio+uvloop", marks=_without_uvloop),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs a test that is marked `anyio` once on each of them."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend


@pytest.fixture(params=[pytest.param("auto", id="adopted"), pytest.param(OverAsgi, id="asgi")])
def way(request: pytest.FixtureRequest) -> Any:
    """``ws=`` of uvicorn: its own, whose connections are taken over, and one whose connections stay with it."""
    return request.param
