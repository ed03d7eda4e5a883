"""What plugins may offer besides their interfaces."""

from types import SimpleNamespace
from typing import Any

import pytest

from polybus._core.link.server_move import MovingSession
from polybus.capture.record.taps import RecordedSession
from polybus.plugins import ProtocolFeatures, SessionFeatures
from polybus.protocols import Csb, Jrep


def test_the_abilities_of_a_class_are_found_as_those_of_its_objects_are() -> None:
    assert ProtocolFeatures.of(Jrep).option_names == ProtocolFeatures.of(Jrep()).option_names
    assert ProtocolFeatures.of(Csb(actions={"user.login": 7})).actions == (("user.login", 7),)


@pytest.mark.parametrize("wrapper", [MovingSession, RecordedSession])
def test_a_session_around_another_hides_what_would_read_past_its_receive(wrapper: type[Any]) -> None:
    around = wrapper.__new__(wrapper)
    around.new = around._inner = SimpleNamespace(usual=len)
    assert SessionFeatures.of(around).usual is None
