"""A shop with an outbox: an order and its publication are one transaction, and each order is billed once, even if processes are
killed.

    POLYBUS_CLUSTER=nats+tcp://127.0.0.1:4222/shop python examples/outbox/app.py
    curl -X POST http://127.0.0.1:8000/orders -H 'content-type: application/json' -d '{"article": "paint", "cents": 1250}'
    curl http://127.0.0.1:8000/bills

It needs a NATS server with JetStream (nats-server -js -sd FOLDER), and SQLAlchemy.
"""

import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from uuid import uuid4

import anyio
import anyio.to_thread
from attrs import frozen
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import create_engine, select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import polybus.fastapi
from polybus import Bus, BusError, Cluster, Store

logger = logging.getLogger("shop")
engine = create_engine(os.environ.get("DATABASE", "sqlite:///shop.db"))


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[str] = mapped_column(primary_key=True)
    article: Mapped[str]
    cents: Mapped[int]


class Outgoing(Base):
    """A publication that the engine may not have stored yet."""

    __tablename__ = "outbox"
    number: Mapped[int] = mapped_column(primary_key=True)
    id: Mapped[str]
    subject: Mapped[str]
    body: Mapped[str]


class Bill(Base):
    """One for each order: its key makes the handler idempotent."""

    __tablename__ = "bills"
    order_id: Mapped[str] = mapped_column(primary_key=True)
    cents: Mapped[int]


class NewOrder(BaseModel):
    article: str
    cents: int


class Placed(BaseModel):
    order_id: str
    cents: int


@frozen
class Waiting:
    """A publication of the outbox, without its session."""

    number: int
    id: str
    subject: str
    body: str


@asynccontextmanager
async def lifespan(bus: Bus) -> AsyncIterator[None]:
    Base.metadata.create_all(engine)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(publish_outbox, bus)
        yield
        tasks.cancel_scope.cancel()


bus = Bus(cluster=Cluster(stores=[Store("orders", "orders.>", max_age=timedelta(days=7))]), lifespan=lifespan)
app = FastAPI()
polybus.fastapi.attach(app, bus)


@app.post("/orders")
def place(order: NewOrder) -> dict[str, str]:
    placed = Placed(order_id=uuid4().hex, cents=order.cents)
    with Session(engine) as session, session.begin():  # both rows, or none
        session.add(Order(id=placed.order_id, article=order.article, cents=order.cents))
        session.add(Outgoing(id=f"placed-{placed.order_id}", subject="orders.placed", body=placed.model_dump_json()))
    return {"id": placed.order_id}


@app.get("/bills")
def bills() -> dict[str, int]:
    with Session(engine) as session:
        return {bill.order_id: bill.cents for bill in session.scalars(select(Bill))}


async def publish_outbox(bus: Bus) -> None:
    """Publish the contents of the outbox. A publication that was not removed afterwards is repeated with the same id."""
    while True:
        try:
            for waiting in await anyio.to_thread.run_sync(oldest):
                body = Placed.model_validate_json(waiting.body)
                await bus.publish(waiting.subject, body, id=waiting.id)  # returns when it is stored
                await anyio.to_thread.run_sync(remove, waiting.number)
        except BusError as error:
            logger.warning("the outbox waits: %s", error)
        await anyio.sleep(0.2)


def oldest() -> list[Waiting]:
    with Session(engine) as session:
        rows = session.scalars(select(Outgoing).order_by(Outgoing.number).limit(100))
        return [Waiting(row.number, row.id, row.subject, row.body) for row in rows]


def remove(number: int) -> None:
    with Session(engine) as session, session.begin():
        row = session.get(Outgoing, number)
        if row is not None:  # another worker was faster
            session.delete(row)


@bus.on("orders.placed", durable="billing")
def bill(placed: Placed) -> None:
    """Bill an order. It may come twice; at the same time one attempt fails at the key, is repeated, and finds the other's
    bill."""
    with Session(engine) as session, session.begin():
        if session.get(Bill, placed.order_id) is None:
            session.add(Bill(order_id=placed.order_id, cents=placed.cents))


if __name__ == "__main__":
    polybus.fastapi.run(app, port=int(os.environ.get("PORT", "8000")))
