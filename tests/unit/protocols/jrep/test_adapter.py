"""The options of the protocol."""

import json

import pytest

from polybus.cli.app import run


def test_inspect_shows_the_messages_of_a_payload(capsys: pytest.CaptureFixture[str]) -> None:
    payload = b'[{"ToSubject":"a","Value":{"^EncodedType":"java.lang.Long","^ObjectID":"-1","^NumVal":"5"}},{"Value":1}]'
    assert run(["inspect", payload.hex(), "--protocol", "jrep", "--json"]) == 1
    shown = capsys.readouterr().out
    assert json.loads(shown.splitlines()[0])["messages"][0] == {"kind": "publish", "subject": "a", "body": 5}
    assert "no ToSubject" in shown
