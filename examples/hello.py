import anyio

from polybus import Bus, connect

bus = Bus()


@bus.handle("greet")
async def greet(name: str) -> str:
    return f"Hello, {name}"


async def main() -> None:
    async with bus.serve("ubre+ws://127.0.0.1:0/bus") as server, connect(server.url) as client:
        print(await client.request("greet", "Ann", timeout=2))


anyio.run(main)
