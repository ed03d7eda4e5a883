"""Prints the notifications of one user, each once, across lost connections and expired tokens.

python examples/notifications/client.py http://127.0.0.1:8000 ann
"""

import os
import sys

import anyio
import httpx

from polybus import Bus, BusError, Disconnected, connect
from polybus.events import LinkUp

WAIT = float(os.environ.get("WAIT_SECONDS", "10"))
"""Seconds for the server to start."""


class Reader:
    """Fetches new notifications, and prints them."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._last = 0
        self._one_at_a_time = anyio.Lock()

    async def catch_up(self) -> None:
        """Fetch notifications published while the connection was down."""
        async with self._one_at_a_time:
            for one in await self._since():
                print(f"{one['number']}: {one['text']}", flush=True)
                self._last = one["number"]

    async def _since(self) -> list[dict[str, object]]:
        while True:
            try:
                return await self._bus.request("notifications.since", self._last, returns=list[dict[str, object]])
            except Disconnected:
                pass  # the link broke before the answer came; a second request does no harm

    async def after_each_loss(self) -> None:
        async for event in self._bus.events():
            if isinstance(event, LinkUp):
                await self.catch_up()


async def main(site: str, user: str) -> None:
    async with httpx.AsyncClient(base_url=site) as http:

        async def token() -> dict[str, str]:
            """Called before every attempt to connect, so that an expired token is replaced."""
            answer = await http.post(f"/login/{user}")
            return {"authorization": f"Bearer {answer.raise_for_status().json()['token']}"}

        url = f"ubre+ws{site.removeprefix('http')}/bus"
        async with connect(url, headers=token, wait=WAIT) as bus, bus.subscribe("notification") as news:
            reader = Reader(bus)
            async with anyio.create_task_group() as group:
                group.start_soon(reader.after_each_loss)
                await reader.catch_up()
                print("ready", flush=True)
                async for _ in news:
                    await reader.catch_up()


if __name__ == "__main__":
    try:
        anyio.run(main, sys.argv[1], sys.argv[2])
    except KeyboardInterrupt:
        pass
    except (BusError, ValueError, httpx.HTTPError) as error:
        sys.exit(f"client: {error}")
