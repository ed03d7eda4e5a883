"""A service for other services: ``python stock.py [URL]``"""

import sys

from contract import LOW, TAKE, Left, Take

from polybus import Bus, Conflict, Context, NotFound, run

bus = Bus()
bus.publishes(LOW, description="Fewer than three pieces of an article are left.")
pieces = {"bolt": 100, "nut": 3}


@bus.handle(TAKE)
async def take(wanted: Take, ctx: Context) -> Left:
    there = pieces.get(wanted.article)
    if there is None:
        raise NotFound(f"there are no {wanted.article}s")
    if there < wanted.pieces:
        raise Conflict(f"{there} of {wanted.pieces} {wanted.article}s are left")
    left = pieces[wanted.article] = there - wanted.pieces
    if left < 3:
        await ctx.bus.publish(LOW, Left(wanted.article, left))
    return Left(wanted.article, left)


if __name__ == "__main__":
    run(bus, sys.argv[1] if len(sys.argv) > 1 else "ubre+tcp://127.0.0.1:9001")
