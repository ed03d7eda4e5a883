"""A page with frames of another site, one of which opens the door of a vehicle: through the page, this server and a bridge.

    python examples/door/app.py

and open http://127.0.0.1:8000. The frame *panel* talks with the page alone; the frame *door* is joined to the server with a
token of its own, and the vehicle behind the bridge speaks uProtocol. Both frames speak by `polybus.js`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse

import polybus.fastapi
from polybus import Bus, Identity, NotFound, Route, bridge, connect
from polybus.plugins import Handshake

HERE = Path(__file__).parent
TOKEN = "Bearer door-frame"  # a real application makes one for each frame, as examples/frames does
ROUTES = (Route("vehicle.>", "{rest}"), Route("door.*", "vehicle.door.{1}", {"publish"}, reverse=True))

vehicle = Bus()
doors = {"front left": 0, "front right": 0, "rear": 0}


@vehicle.handle("door.move")
async def move(body: dict[str, Any]) -> dict[str, Any]:
    """Opens a door so far, in percent, and tells all who watch it."""
    if body["door"] not in doors:
        raise NotFound(f"this vehicle has no {body['door']} door")
    doors[body["door"]] = body["position"]
    await vehicle.publish("door.moved", body)
    return body


def authenticate(handshake: Handshake) -> Identity | None:
    """Decided by the token alone: a browser sends the page's cookies along with the request of any frame."""
    return Identity("the door frame") if handshake.headers.get("authorization") == TOKEN else None


site = Bus(authenticate=authenticate)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with vehicle.serve("uprotocol+tcp://127.0.0.1:0") as listener:
        right = Bus()
        async with connect(listener.url, bus=right), site, bridge(site, right, routes=ROUTES):
            yield


app = FastAPI(lifespan=lifespan)
polybus.fastapi.attach(app, site, path="/bus", script="/polybus.js")


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(HERE / "page.html")


@app.get("/frame")
async def frame() -> FileResponse:
    return FileResponse(HERE / "frame.html")


if __name__ == "__main__":
    polybus.fastapi.run(app, host="127.0.0.1", port=int(os.environ.get("PORT", "8000")))
