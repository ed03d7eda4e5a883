"""The JavaScript module: what it exports, what its types say, and how it is served."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

import polybus.transports.postmessage as package
from polybus import Bus
from polybus.errors import LocalProtocolError
from polybus.fastapi import attach
from polybus.transports.postmessage import script

EXPORTS = ["connectToHost", "pump", "serveFrame"]


def test_the_module_and_its_types_export_the_same() -> None:
    types = Path(package.__file__).with_name("polybus.d.ts").read_text()
    assert sorted(re.findall(r"^export function (\w+)", script(), re.M)) == EXPORTS
    assert sorted(re.findall(r"^export function (\w+)", types, re.M)) == EXPORTS


def test_importing_the_module_does_nothing_yet() -> None:
    """In Node there is neither window nor frame."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    program = "console.log(Object.keys(await import(process.argv[1])).join())"
    path = Path(package.__file__).with_name("polybus.js")
    command = ["node", "--input-type=module", "--eval", program, f"file://{path}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip().split(",") == EXPORTS, done.stderr


def test_attach_serves_it_also_to_frames_of_no_origin() -> None:
    app = Starlette()
    attach(app, Bus(), path="/one", script="/static/polybus.js")
    attach(app, Bus(), path="/other", script="/static/polybus.js")
    with TestClient(app) as client:
        answer = client.get("/static/polybus.js", headers={"origin": "null"})
    assert answer.text == script()
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["access-control-allow-origin"] == "*"
    assert len([route for route in app.routes if getattr(route, "name", "") == "polybus-script"]) == 1


def test_a_path_begins_with_a_slash() -> None:
    with pytest.raises(ValueError, match="begins with a slash"):
        attach(Starlette(), Bus(), script="polybus.js")


def test_without_a_script_there_is_none() -> None:
    app = Starlette()
    attach(app, Bus())
    with TestClient(app) as client:
        assert client.get("/polybus.js").status_code == 404


def test_what_is_not_here_has_no_name() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nonsense'"):
        _ = package.Nonsense


def test_a_port_of_the_browser_wants_a_browser() -> None:
    with pytest.raises(LocalProtocolError, match="with Pyodide"):
        package.JSPort(object())
