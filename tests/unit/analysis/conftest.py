"""What most tests do without: the plots of a page take long."""

import pytest

from polybus.analysis.report import plots


@pytest.fixture
def drawn() -> None:
    """The pages of a test have their plots."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        for name in ("throughput", "histogram", "latency_over_time", "errors", "sessions"):
            monkeypatch.setattr(plots, name, lambda *_: "<svg></svg>")
