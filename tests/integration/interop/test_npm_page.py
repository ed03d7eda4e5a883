"""The program of a page in the documentation, as it stands there, in Node."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import anyio
import pytest

from polybus import Bus
from tests.integration.interop.node_peer import require_node
from tests.support import BOUND

pytestmark = pytest.mark.anyio

HERE = Path(__file__).parent
PAGE = HERE.parents[2] / "docs/how-to/from-socketio.md"
PREFACE = "import WebSocket from 'ws'\n"


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def chat(tmp_path: Path) -> Bus:
    """The bus of the same page."""
    [program] = blocks("python")
    (tmp_path / "chat.py").write_text(program.removesuffix("anyio.run(main)\n"))
    found: Any = runpy.run_path(str(tmp_path / "chat.py"))["bus"]
    assert isinstance(found, Bus)
    return found


async def in_node(program: str) -> str:
    with anyio.fail_after(BOUND):
        done = await anyio.run_process(["node", "--input-type=module", "-e", program], cwd=HERE / "node", check=False)
    return done.stdout.decode() + done.stderr.decode()


async def test_the_page_says_and_hears_and_a_stranger_is_not_let_in(chat: Bus) -> None:
    require_node("ubre", "ws")
    [program] = blocks("js")
    async with chat.serve("ubre+ws://127.0.0.1:0/bus") as listener:
        program = PREFACE + program.replace("ws://127.0.0.1:8000/bus", listener.url.removeprefix("ubre+"))
        program = program.replace("  } catch (text)", "    socket.close()\n  } catch (text)")
        assert (await in_node(program)).splitlines() == ["ann: hello", "to rooms: 1", "not connected: 1005 "]
        assert "401" in await in_node(program.replace("polybus.token.t-ann", "polybus.token.guessed"))
