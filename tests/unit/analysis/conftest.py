"""Recordings are written by a thread: a process takes half a second to begin, and writes the same."""

import pytest


@pytest.fixture(autouse=True)
def by_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus.capture.record.recorder.possible", lambda: False)
