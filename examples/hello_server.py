"""A server with graceful shutdown on SIGINT or SIGTERM: ``python hello_server.py [URL]``"""

import sys

from attrs import frozen

from polybus import Bus, NotFound, run

bus = Bus()


@frozen
class GetTank:
    number: int


@frozen
class Tank:
    number: int
    litres: float


@bus.handle("tank.get")
async def get_tank(query: GetTank) -> Tank:
    if query.number > 9:
        raise NotFound(f"there is no tank {query.number}")
    return Tank(query.number, query.number * 10.5)


if __name__ == "__main__":
    run(bus, sys.argv[1] if len(sys.argv) > 1 else "ubre+ws://127.0.0.1:8000/bus")
