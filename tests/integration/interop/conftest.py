"""What the tests against real peers share."""

import itertools

import pytest

from tests.integration.interop.node_peer import require_node

_names = itertools.count()


@pytest.fixture
def name() -> str:
    """Of a cluster, or of the subjects of a stream: one for each test, since a server keeps what is stored."""
    return f"shop{next(_names)}"


@pytest.fixture(params=["ws7", "ws8"])
def ws(request: pytest.FixtureRequest) -> str:
    """The package under npm ubre: `ws` 7 with the wrappers of ubre, or `ws` 8 with the manual hook-up."""
    require_node()
    version: str = request.param
    return version
