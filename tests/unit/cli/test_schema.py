"""`polybus schema`: the document of a bus or of a contract, and its page."""

import json
from pathlib import Path

import pytest

from polybus.cli.app import run
from tests.unit.cli.support import one_line

APP = '''"""The shop.

What it can be asked.
"""

from typing import Protocol

from attrs import frozen

from polybus import Bus

bus = Bus()


@frozen
class User:
    id: int


class Users(Protocol):
    """The users."""

    async def get(self, id: int) -> User: ...


@bus.handle("user.get")
async def get_user(id: int) -> User:
    """Find one."""
    return User(id)
'''


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> str:
    """The name of the module, another one for each test: they are imported."""
    name = f"schema_app_{abs(hash(request.node.name))}"
    (tmp_path / f"{name}.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_bus_is_described(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", f"{app}:bus", "--version", "3.1", "--server", "ubre+wss://example.org/bus"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["info"] == {"title": app, "version": "3.1", "description": "The shop.\n\nWhat it can be asked."}
    assert list(made["operations"]) == ["user.get"]
    assert made["servers"]["ubre-wss"]["host"] == "example.org"


def test_a_contract_is_described(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", f"{app}:Users", "--prefix", "user", "--title", "People"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["info"] == {"title": "People", "version": "1.0.0", "description": "The users."}
    assert list(made["operations"]) == ["user.get"]


def test_a_page_is_written(app: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema", f"{app}:bus", "--html", "page.html"]) == 0
    assert capsys.readouterr().out == ""
    text = (tmp_path / "page.html").read_text()
    assert text.startswith("<!doctype html>")
    assert "user.get" in text


def test_a_wrong_name_is_one_line_that_names_what_there_is(app: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, "schema", f"{app}:User")
    assert status == 2
    assert text == f"{app}:User is neither a Bus nor a Protocol class; there is {app}:bus, {app}:Users"
    assert one_line(capsys, "schema", f"{app}:bus", "--prefix", "user")[0] == 2
    assert one_line(capsys, "schema", f"{app}:bus", "--server", "example.org")[0] == 2
    assert one_line(capsys, "schema", f"{app}:bus", "--html", "missing/page.html")[0] != 0
