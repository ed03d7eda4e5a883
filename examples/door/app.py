"""A page with frames of another site. One frame opens the door of a vehicle, through the page, this server and a bridge.

    python examples/door/app.py

and open http://127.0.0.1:8000. The frame *panel* talks only with the page; the frame *door* is connected to the server with its
own token, and the vehicle behind the bridge speaks uProtocol. Both frames use `polybus.js`.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse

import polybus.fastapi
from polybus import Bus, Handshake, Identity, NotFound, Route, bridge, connect

HERE = Path(__file__).parent
TOKEN = "Bearer door-frame"  # a real application creates one per frame, as in examples/frames
ROUTES = (Route("vehicle.>", "{rest}"), Route("door.*", "vehicle.door.{1}", {"publish"}, reverse=True))

vehicle = Bus()
doors = {"front left": 0, "front right": 0, "rear": 0}


@vehicle.handle("door.move")
async def move(body: dict[str, Any]) -> dict[str, Any]:
    """Open a door to a percentage, and publish its position."""
    if body["door"] not in doors:
        raise NotFound(f"this vehicle has no {body['door']} door")
    doors[body["door"]] = body["position"]
    await vehicle.publish("door.moved", body)
    return body


def authenticate(handshake: Handshake) -> Identity | None:
    """Decide only by the token: a browser sends the page's cookies with the request of any frame."""
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
