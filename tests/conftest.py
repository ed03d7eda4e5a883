"""What every test shares: the three event loops that polybus promises to run on, and how hypothesis tries things."""

import os
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# A machine with other work to do is no failure: hypothesis would else take 200 ms for one example as one. Where a change is
# judged (.ci/run) it tries the same examples each time, so that the verdict is about the change; on our machines, others.
_USUAL = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize="POLYBUS_CI" in os.environ)
settings.register_profile("polybus", _USUAL)
settings.register_profile("long", _USUAL, max_examples=3000, derandomize=False)
settings.load_profile("polybus")

_without_uvloop = pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed")


@pytest.fixture(
    scope="module",  # as in anyio itself, so that a module may share an asynchronous fixture
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="asyncio+uvloop", marks=_without_uvloop),
        pytest.param(("trio", {}), id="trio"),
    ],
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Runs a test that is marked `anyio` once on each event loop."""
    backend: tuple[str, dict[str, Any]] = request.param
    return backend
