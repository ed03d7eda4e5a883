"""What plugins may offer besides their interfaces."""

from types import SimpleNamespace
from typing import Any

import pytest

from polybus._core.link.server_move import MovingSession
from polybus.capture.record.taps import RecordedSession
from polybus.plugins import ProtocolFeatures, SessionFeatures, TransportFeatures
from polybus.protocols import Csb, Jrep


class Terse:
    """A plugin of others that has nothing of its own to say."""


class Answering(Terse):
    initiates = False

    def pause_reading(self) -> None:
        self.paused = True


def test_a_plugin_that_says_nothing_has_the_defaults() -> None:
    assert TransportFeatures.of(Terse()) == TransportFeatures() == TransportFeatures.of(None)
    TransportFeatures.of(Terse()).resume_reading()


def test_an_attribute_or_method_of_that_name_is_the_ability() -> None:
    transport = Answering()
    features = TransportFeatures.of(transport)
    features.pause_reading()
    assert (features.initiates, features.admitted, transport.paused) == (False, True, True)


def test_the_abilities_of_a_class_are_found_as_those_of_its_objects_are() -> None:
    assert ProtocolFeatures.of(Jrep).option_names == ProtocolFeatures.of(Jrep()).option_names
    assert ProtocolFeatures.of(Csb(actions={"user.login": 7})).actions == (("user.login", 7),)


@pytest.mark.parametrize("wrapper", [MovingSession, RecordedSession])
def test_a_session_around_another_hides_what_would_read_past_its_receive(wrapper: type[Any]) -> None:
    around = object.__new__(wrapper)
    around.new = around._inner = SimpleNamespace(usual=len)
    assert SessionFeatures.of(around).usual is None
