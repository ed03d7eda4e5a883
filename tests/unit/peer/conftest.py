"""Shared by the tests of peers: one that does not answer a hello is given up soon."""

import pytest


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polybus._core.peer.negotiation.HELLO_TIMEOUT", 0.02)
