"""The back end in a FastAPI application, served by uvicorn."""

from __future__ import annotations

from urllib.parse import urlsplit

from .._bus.bus import Bus
from ..plugins.registry import resolve_url
from .play import TIMEOUT

__all__ = ["serve"]


def serve(bus: Bus, url: str) -> None:
    """Until SIGTERM: ``ubre+ws://127.0.0.1:0/bus``."""
    from fastapi import FastAPI

    from ..fastapi import attach, run

    adapter, _, address = resolve_url(url)
    place = urlsplit(address)
    app = FastAPI()
    attach(app, bus, place.path, adapter)
    run(app, host=place.hostname or "127.0.0.1", port=place.port or 0, drain=TIMEOUT, log_level="warning")
