"""A service for customers that calls another one: ``python shop.py [URL OF THE STOCK]``"""

import sys
from itertools import count

import anyio
from contract import LOW, ORDER, TAKE, Left, Order, Receipt, Take

from polybus import Bus, Conflict, Context, NotFound, RequestError, connect

bus = Bus()
numbers = count(1)


@bus.handle(ORDER)
async def order(wanted: Order, ctx: Context) -> Receipt:
    try:
        left = await ctx.bus.request(TAKE, Take(wanted.article, wanted.pieces), timeout=2)
    except (NotFound, Conflict) as error:
        raise error.relay() from None  # for the customer; other errors of the stock stay hidden
    return Receipt(next(numbers), wanted.customer, left.pieces)


@bus.on(LOW)
async def reorder(body: Left) -> None:
    print(f"shop: order more {body.article}s, {body.pieces} left")


async def main(stock: str) -> None:
    async with bus.connect(stock, serves=["stock.>"]), bus.serve("ubre+ws://127.0.0.1:0/shop") as shop:
        async with connect(shop.url) as customer:
            print(await customer.request(ORDER, Order("Ann", "bolt", 10)))
            for wanted in (Order("Bob", "nut", 2), Order("Bob", "nut", 2), Order("Eve", "screw")):
                try:
                    print(await customer.request(ORDER, wanted))
                except RequestError as error:
                    print(f"{type(error).__name__}: {error.text}")


anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "ubre+tcp://127.0.0.1:9001")
