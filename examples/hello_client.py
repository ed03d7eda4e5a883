"""Sends requests to hello_server.py, and shows errors: ``python hello_client.py [URL]``"""

import sys

import anyio
from attrs import frozen

from polybus import BadReply, BadRequest, NoHandler, NotFound, connect

URL = "ubre+ws://127.0.0.1:8000/bus"


@frozen
class Tank:
    number: int
    litres: float


async def main(url: str) -> None:
    async with connect(url) as bus:
        print(await bus.request("tank.get", {"number": 4}, returns=Tank, timeout=2))

        replies = [bus.request("tank.get", {"number": n}, returns=Tank) for n in range(10)]
        print(sum([(await reply).litres for reply in replies]), "litres in all")

        try:
            await bus.request("tank.get", {"number": 99}, returns=Tank)
        except NotFound as error:
            print("NotFound:", error.text)
        try:
            await bus.request("tank.get", {"number": "four"})
        except BadRequest as error:
            print("BadRequest:", error.text)
        try:
            await bus.request("tank.get", {"number": 4}, returns=str)
        except BadReply as error:
            print("BadReply:", error)
        try:
            await bus.request("tank.paint", "red")
        except NoHandler as error:
            print("NoHandler:", error.text)


anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else URL)
