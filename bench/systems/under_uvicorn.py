"""The same bus in a FastAPI application, served by uvicorn as `polybus.fastapi.run` sets it up. The clients are our own."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import anyio
import uvicorn
from fastapi import FastAPI

from polybus.fastapi import attach

from ._frames import BACKLOG
from .ours import connect, light, make_bus

__all__ = ["connect", "light", "serve"]

_LARGEST = 4 * 1024 * 1024


async def serve(options: dict[str, Any], ready: Callable[[str], None]) -> None:
    app = FastAPI()
    attach(app, make_bus(options))
    config = uvicorn.Config(
        app, ws="websockets-sansio", ws_per_message_deflate=False, ws_max_size=_LARGEST, log_level="error", backlog=BACKLOG
    )
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) as sock:
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [sock])
            while not server.started:  # noqa: ASYNC110  # uvicorn tells nobody
                await anyio.sleep(0.001)
            ready(f"ubre+ws://127.0.0.1:{sock.getsockname()[1]}/bus")
