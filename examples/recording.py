"""A shop records itself for a while, and afterwards shows which requests failed, and why.

``python examples/recording.py``
"""

import json
import tempfile

import anyio

from polybus import Bus, Conflict, connect
from polybus.capture import Capture, decode

shop = Bus()
stock = {"apple": 1, "pear": 5}


@shop.handle("shop.buy")
async def buy(order: dict) -> dict:
    if stock[order["article"]] < order["pieces"]:
        raise Conflict(f"only {stock[order['article']]} left")
    stock[order["article"]] -= order["pieces"]
    return {"left": stock[order["article"]]}


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with shop.serve("ubre+tcp://127.0.0.1:0") as listener, shop.record(folder):
            async with connect(listener.url) as customer:
                for article, pieces in (("apple", 1), ("apple", 1), ("pear", 9)):
                    order = {"article": article, "pieces": pieces, "card_token": "4111-1111"}
                    try:
                        await customer.request("shop.buy", order)
                    except Conflict:
                        print("not sold:", pieces, article)
        show(Capture(folder))


def show(capture: Capture) -> None:
    """Print the failed requests with their bodies and errors."""
    events = [event for batch in capture.batches() for event in decode(batch.rows).events.to_pylist()]
    asked = {event["correlation_id"]: event for event in events if event["kind"] == "request"}
    for event in events:
        if event["kind"] == "response" and event["code"]:
            request = asked[event["correlation_id"]]
            milliseconds = (event["mono_ns"] - request["mono_ns"]) / 1e6
            assert milliseconds > 0
            print("recorded:", request["data"].decode(), event["code_name"], json.loads(event["data"])["text"])


anyio.run(main)
