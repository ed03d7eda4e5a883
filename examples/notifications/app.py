"""Notifications for each user, in all of the user's tabs and programs.

    python examples/notifications/app.py
    python examples/notifications/client.py http://127.0.0.1:8000 ann

and, to send one: curl -X POST http://127.0.0.1:8000/notify/ann -H 'content-type: application/json' -d '"your parcel is here"'
"""

import datetime
import os
import secrets
from typing import Annotated

from attrs import asdict, frozen
from fastapi import Body, FastAPI, Response

import polybus
import polybus.fastapi
from polybus import Bus, Context, Identity
from polybus.fastapi import BusDep
from polybus.plugins import Handshake

SECONDS = float(os.environ.get("TOKEN_SECONDS", "1800"))


@frozen
class Session:
    user: str
    expires_at: datetime.datetime


@frozen
class Notification:
    number: int
    text: str


sessions: dict[str, Session] = {}
inbox: dict[str, list[Notification]] = {}
"""Notifications by user. A lost connection misses some; clients fetch them here."""


def authenticate(handshake: Handshake) -> Identity | None:
    """Accepts a cookie from a browser, a header from a program, or a token as sub-protocol, which arrives as that header."""
    token = handshake.cookies.get("session") or handshake.headers.get("authorization", "").removeprefix("Bearer ")
    session = sessions.get(token)
    return None if session is None else Identity(session.user, key=session.user, expires_at=session.expires_at)


def authorize(peer: polybus.Peer, verb: str, subject: str | int) -> bool:
    """Clients only read: they subscribe to notifications and fetch missed ones."""
    return (verb, subject) in {
        ("subscribe", "notification"),
        ("deliver", "notification"),
        ("request", "notifications.since"),
    }


bus = Bus(authenticate=authenticate, authorize=authorize)


@bus.handle("notifications.since")
async def since(number: int, ctx: Context) -> list[Notification]:
    return [one for one in inbox.get(ctx.identity, []) if one.number > number]


app = FastAPI()
polybus.fastapi.attach(app, bus)


@app.post("/login/{user}")
async def login(user: str, response: Response) -> dict[str, str]:
    token = secrets.token_urlsafe(16)
    sessions[token] = Session(user, datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=SECONDS))
    response.set_cookie("session", token, httponly=True, samesite="lax", max_age=int(SECONDS))
    return {"token": token}


@app.post("/notify/{user}")
async def notify(user: str, text: Annotated[str, Body()], bus: BusDep) -> dict[str, int]:
    told = inbox.setdefault(user, [])
    told.append(Notification(len(told) + 1, text))
    tabs = bus.peers_of(user)
    await bus.publish("notification", asdict(told[-1]), to=tabs)
    return {"tabs": len(tabs)}


if __name__ == "__main__":
    polybus.fastapi.run(app, port=int(os.environ.get("PORT", "8000")))
