"""A contract and its implementation in two wheels: the caller has the first one alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import BOUND

CONTRACT = '''"""What the shop can be asked."""
from collections.abc import AsyncIterator
from typing import Protocol

from attrs import frozen

from polybus import method, notify


@frozen
class User:
    id: int
    name: str


class Users(Protocol):
    """Users of the shop."""

    async def get(self, id: int) -> User: ...

    @method("all", timeout=5)
    def every(self, first: int) -> AsyncIterator[User]: ...

    @notify
    async def forget(self, id: int) -> None: ...
'''

IMPLEMENTATION = '''"""Users in memory."""
from collections.abc import AsyncIterator

from polybus import Bus, NotFound
from shop_contract import User, Users


class UsersInMemory(Users):
    def __init__(self) -> None:
        self.names = {1: "Ann", 2: "Bob"}

    async def get(self, id: int) -> User:
        if id not in self.names:
            raise NotFound(f"no user {id}")
        return User(id, self.names[id])

    async def every(self, first: int) -> AsyncIterator[User]:
        for id, name in self.names.items():
            if id >= first:
                yield User(id, name)

    async def forget(self, id: int) -> None:
        del self.names[id]


bus = Bus()
bus.implement(Users, UsersInMemory(), "user")
'''

CALLER = """import sys
from importlib.util import find_spec

import anyio
from polybus import NotFound, connect
from shop_contract import Users

assert find_spec("shop_users") is None


async def main() -> None:
    async with connect(sys.argv[1]) as bus:
        users = bus.client(Users, "user")
        print(await users.get(1))
        print([user.name async for user in users.every(1)])
        await users.forget(2)
        try:
            await users.get(2)
        except NotFound as error:
            print(error.text)


anyio.run(main)
"""


def wheel(folder: Path, name: str, text: str, needs: str = "") -> Path:
    """Build a wheel of one module, without a network."""
    source = folder / name
    source.mkdir()
    (source / f"{name}.py").write_text(text)
    (source / "pyproject.toml").write_text(
        f'[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        f'[project]\nname = "{name}"\nversion = "1.0"\nrequires-python = ">=3.11"\ndependencies = [{needs}]\n'
        f'[tool.hatch.build.targets.wheel]\ninclude = ["{name}.py"]\n'
    )
    pip(folder, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(source))
    return folder / f"{name}-1.0-py3-none-any.whl"


def installed(folder: Path, *wheels: Path) -> dict[str, str]:
    """The environment of programs that have these wheels, and what this one has."""
    pip(folder, "install", "--no-deps", "--target", str(folder), *map(str, wheels))
    return {**os.environ, "PYTHONPATH": str(folder)}


def pip(folder: Path, *command: str) -> None:
    command = (command[0], "--no-index", "--disable-pip-version-check", "--quiet", *command[1:])
    ended = subprocess.run([sys.executable, "-m", "pip", *command], cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The contract, and its implementation."""
    folder = tmp_path_factory.mktemp("wheels")
    return wheel(folder, "shop_contract", CONTRACT, '"polybus"'), wheel(folder, "shop_users", IMPLEMENTATION, '"shop_contract"')


@pytest.mark.parametrize("protocol", ["ubre", "csb"])
def test_contract_and_implementation_are_two_wheels(tmp_path: Path, wheels: tuple[Path, Path], protocol: str) -> None:
    contract, implementation = wheels
    (tmp_path / "caller.py").write_text(CALLER)
    at_server, at_client = (tmp_path / name for name in ("server", "client"))
    at_server.mkdir()
    at_client.mkdir()
    command = [sys.executable, "-m", "polybus", "serve", "shop_users:bus", f"{protocol}+tcp://127.0.0.1:0"]
    environment = installed(at_server, contract, implementation)
    with subprocess.Popen(command, cwd=at_server, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            url = server.stdout.readline().removeprefix("serving ").strip()
            ended = subprocess.run(
                [sys.executable, str(tmp_path / "caller.py"), url],
                env=installed(at_client, contract),
                capture_output=True,
                text=True,
                timeout=BOUND,
                check=False,
            )
            assert ended.returncode == 0, ended.stderr
            assert ended.stdout == "User(id=1, name='Ann')\n['Ann', 'Bob']\nno user 2\n"
        finally:
            server.terminate()
            server.wait(BOUND)
