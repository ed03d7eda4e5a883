"""What type checkers know of handlers that ask for values: mypy reads this file with `make lint`, pytest only imports it."""

from collections.abc import AsyncIterator
from typing import Annotated, assert_type

from fast_depends import Depends
from fastapi import Depends as FastapiDepends

from polybus import Bus, Context, Dependencies


class Session:
    """A session of a database."""


async def session(ctx: Context) -> AsyncIterator[Session]:
    yield Session()


def fake_session() -> Session:
    return Session()


bus = Bus()


@bus.handle("get")
async def get(query: int, db: Annotated[Session, Depends(session)]) -> str:
    assert_type(db, Session)
    return str(query)


@bus.on("news.{day}")
def on_news(day: str, body: str, db: Annotated[Session, FastapiDepends(session)]) -> None:
    assert_type(db, Session)


async def test_handlers_stay_functions_that_a_test_can_call() -> None:
    assert_type(await get(7, Session()), str)
    assert_type(bus.dependencies, Dependencies)
    with bus.dependencies.override(session, fake_session) as nothing:
        assert_type(nothing, None)
