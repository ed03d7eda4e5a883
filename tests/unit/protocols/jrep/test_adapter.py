"""The options of the protocol."""

import json

import pytest

from polybus import Limits
from polybus.cli.app import run
from polybus.plugins.registry import resolve_url
from polybus.protocols import Jrep
from polybus.protocols.jrep import JavaTypes


def test_options_come_from_a_url_and_go_back_into_one() -> None:
    adapter, _, address = resolve_url("jrep+ws://h/bus?dialect=legacy&values=plain&types=strict&heartbeat=2.5&token=x")
    assert adapter == Jrep(dialect="legacy", values="plain", types="strict", heartbeat=2.5)
    assert address == "ws://h/bus?token=x"
    assert dict(adapter.url_options) == {"dialect": "legacy", "values": "plain", "types": "strict", "heartbeat": "2.5"}
    assert Jrep.from_options(adapter.url_options) == adapter
    assert dict(Jrep().url_options) == {}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dialect": "v4"}, "auto, v3, legacy"),
        ({"values": "xml"}, "errai, plain"),
        ({"types": "any"}, "lenient, strict"),
        ({"heartbeat": "often"}, "seconds"),
        ({"heartbeat": "-1"}, "seconds"),
        ({"heartbeat": "nan"}, "seconds"),
        ({"java": "x"}, "unknown option java; known are dialect"),
    ],
)
def test_an_unknown_option_is_refused_with_those_that_are_known(options: dict[str, str], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Jrep.from_options(options)


def test_equal_adapters_share_a_codec_and_registries_do_not() -> None:
    assert Jrep().codec() is Jrep(dialect="v3", heartbeat=1).codec()
    assert Jrep().codec() is not Jrep(values="plain").codec()
    assert Jrep().codec() is not Jrep().codec(Limits(message=5))
    assert Jrep(java=JavaTypes()).codec() is not Jrep(java=JavaTypes()).codec()


def test_inspect_shows_the_messages_of_a_payload(capsys: pytest.CaptureFixture[str]) -> None:
    payload = b'[{"ToSubject":"a","Value":{"^EncodedType":"java.lang.Long","^ObjectID":"-1","^NumVal":"5"}},{"Value":1}]'
    assert run(["inspect", payload.hex(), "--protocol", "jrep", "--json"]) == 1
    shown = capsys.readouterr().out
    assert json.loads(shown.splitlines()[0])["messages"][0] == {"kind": "publish", "subject": "a", "body": 5}
    assert "no ToSubject" in shown
