"""A FastAPI application with users, as a process. Its only argument is a JSON object of options:

* ``mounted``: the application with the bus is mounted into another one
* ``limits``: fields of `Limits`; ``run``: further arguments of `polybus.fastapi.run`
"""

import json
import resource
import sys
from typing import Annotated, Any

import anyio
import attrs
from fastapi import Body, FastAPI

from polybus import Bus, Context, Identity, Limits
from polybus.fastapi import BusDep, attach, run
from polybus.plugins import Handshake
from tests.support import free_port

Json = Annotated[Any, Body()]


def authenticate(handshake: Handshake) -> Identity | None:
    user = handshake.cookies.get("user")
    return None if user is None else Identity({"name": user}, key=user)


def made(options: dict[str, Any]) -> FastAPI:
    bus = Bus(authenticate=authenticate, limits=Limits(**options.get("limits", {})))
    app = FastAPI()
    attach(app, bus)

    @bus.handle("whoami")
    async def whoami(ctx: Context) -> Any:
        return ctx.identity["name"]

    @bus.handle("until.drain")
    async def until_drain(number: int, ctx: Context) -> int:
        """Answers when the server has begun to go down."""
        while ctx.bus.ready:  # noqa: ASYNC110  # no event tells of it
            await anyio.sleep(0.01)
        return number

    bus.handle("never")(anyio.sleep_forever)

    @app.post("/wide/{count}")
    async def wide(count: int, bus: BusDep, body: Json) -> None:
        for _ in range(count):
            await bus.publish("wide", body)

    @app.get("/stats")
    async def stats(bus: BusDep) -> Any:
        return {"ready": bus.ready, **attrs.asdict(bus.stats())}

    if not options.get("mounted"):
        return app
    outer = FastAPI()
    outer.mount("/sub", app)
    return outer


def main() -> None:
    options = json.loads(sys.argv[1])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    port = free_port()
    path = "/sub/bus" if options.get("mounted") else "/bus"
    print(json.dumps({"urls": [f"ubre+ws://127.0.0.1:{port}{path}"]}), flush=True)
    run(made(options), **{"port": port, "log_level": "warning", **options.get("run", {})})


if __name__ == "__main__":
    main()
