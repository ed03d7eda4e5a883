"""What plugins may offer besides their interfaces."""

from types import SimpleNamespace
from typing import Any, cast

from polybus._core.link.server_move import MovingSession
from polybus.capture.record.taps import RecordedSession
from polybus.plugins import ProtocolFeatures, SessionFeatures
from polybus.protocols import Csb, Jrep


def test_the_abilities_of_a_class_are_found_as_those_of_its_objects_are() -> None:
    assert ProtocolFeatures.of(Jrep).option_names == ProtocolFeatures.of(Jrep()).option_names
    assert ProtocolFeatures.of(Csb(actions={"user.login": 7})).actions == (("user.login", 7),)


def test_a_session_around_another_hides_what_would_read_past_its_receive() -> None:
    inner, nothing = SimpleNamespace(usual=len, send=len), cast("Any", None)
    moving = MovingSession(nothing, cast("Any", inner), [], nothing, nothing, nothing, nothing)
    for around in (moving, RecordedSession(inner, max)):
        assert SessionFeatures.of(around).usual is None
