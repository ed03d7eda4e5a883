"""Agreement between the two services: the only file that both import."""

from attrs import frozen

from polybus import Subject


@frozen
class Take:
    article: str
    pieces: int


@frozen
class Left:
    article: str
    pieces: int


@frozen
class Order:
    customer: str
    article: str
    pieces: int = 1


@frozen
class Receipt:
    number: int
    customer: str
    left: int


TAKE = Subject("stock.take", Take, Left)
"""Take pieces out of the stock."""
LOW = Subject("stock.low", Left, None)
"""Published when an article runs out."""
ORDER = Subject("shop.order", Order, Receipt)
"""Place an order."""
