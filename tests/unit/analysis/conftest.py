"""What most tests do without: a process of a recorder takes half a second to begin, and the plots of a page longer."""

import pytest

from polybus.analysis.report import plots


@pytest.fixture(autouse=True)
def by_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.capture.record.recorder.possible", lambda: False)


@pytest.fixture
def drawn() -> None:
    """The pages of a test have their plots."""


@pytest.fixture(autouse=True)
def undrawn(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "drawn" not in request.fixturenames:
        for name in ("throughput", "histogram", "latency_over_time", "errors", "sessions"):
            monkeypatch.setattr(plots, name, lambda *_: "<svg></svg>")
