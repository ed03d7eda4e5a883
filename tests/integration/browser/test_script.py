"""The JavaScript modules: what they export, what their types say, and how they are served."""

import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import polybus
from polybus import Bus
from polybus.errors import LocalProtocolError
from polybus.fastapi import attach
from polybus.transports import postmessage

FOLDER = Path(polybus.__file__).parent / "javascript"
OPTIONAL = {"Asking", "About", "Any", "CodeName", "Contract", "Options", "State", "StateEvent", "Subscription", "Target"}
"""Names of types alone."""
OPTIONAL |= {"FramePort", "PortAbout", "RejectedHello"}


@pytest.mark.parametrize("name", ["polybus", "polybus-frames"])
def test_a_module_and_its_types_export_the_same_and_importing_it_does_nothing_yet(name: str) -> None:
    """In Node there is neither window nor frame."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    program = "console.log(Object.keys(await import(process.argv[1])).join())"
    command = ["node", "--input-type=module", "--eval", program, f"file://{FOLDER / name}.js"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    types = (FOLDER / f"{name}.d.ts").read_text()
    declared = set(re.findall(r"^export (?:function|class|const|interface|type) (\w+)", types, re.M))
    assert set(done.stdout.strip().split(",")) == declared - OPTIONAL, done.stderr


def test_attach_serves_both_also_to_frames_of_no_origin() -> None:
    app = Starlette()
    attach(app, Bus(), path="/one", script="/static/polybus.js")
    attach(app, Bus(), path="/other", script="/static/polybus.js")
    with TestClient(app) as client:
        for name in ("polybus.js", "polybus-frames.js"):
            answer = client.get(f"/static/{name}", headers={"origin": "null"})
            assert answer.text == (FOLDER / name).read_text()
            assert answer.headers["content-type"].startswith("text/javascript")
            assert answer.headers["access-control-allow-origin"] == "*"
    assert answer.text == postmessage.script()
    assert len([route for route in app.routes if getattr(route, "name", "") == "polybus-script"]) == 2


def test_a_browser_fetches_a_module_packed_and_only_when_it_has_changed() -> None:
    app = Starlette()
    attach(app, Bus(), script="/polybus.js")
    with TestClient(app) as client:
        packed, whole = (client.get("/polybus.js", headers={"accept-encoding": kind}) for kind in ("gzip, br", "identity"))
        assert packed.text == whole.text
        assert int(packed.headers["content-length"]) < len(whole.content) / 2
        assert packed.headers["etag"] == whole.headers["etag"]
        accepted = {"br, GZIP;q=0.5": "gzip", "gzip;q=0": None, "br, gzip; q=0.0": None, "br": None}
        for asked, encoding in accepted.items():
            headers = client.get("/polybus.js", headers={"accept-encoding": asked}).headers
            assert headers.get("content-encoding") == encoding, asked
        known = client.get("/polybus.js", headers={"if-none-match": whole.headers["etag"]})
        assert (known.status_code, known.content, known.headers["cache-control"]) == (304, b"", "no-cache")
        for asked, kept in ((version("polybus"), True), ("0.0.0", False)):
            assert ("immutable" in client.get("/polybus.js", params={"v": asked}).headers["cache-control"]) is kept


def test_without_a_script_there_is_none() -> None:
    app = Starlette()
    attach(app, Bus())
    with TestClient(app) as client:
        assert client.get("/polybus.js").status_code == 404


def test_what_is_not_here_has_no_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = postmessage.Nonsense


def test_a_port_of_the_browser_wants_a_browser() -> None:
    with pytest.raises(LocalProtocolError, match="with Pyodide"):
        postmessage.JSPort(object())
