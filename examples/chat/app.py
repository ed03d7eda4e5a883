"""A chat with a browser page that uses `polybus.js`.

    python examples/chat/app.py

and open http://127.0.0.1:8000 in two windows.
"""

import os
import secrets
from collections import deque
from pathlib import Path

from attrs import asdict, field, frozen
from attrs.validators import max_len, min_len
from fastapi import FastAPI, Response
from fastapi.responses import FileResponse

import polybus.fastapi
from polybus import Bus, Context, Handshake, Identity, Peer

HERE = Path(__file__).parent

sessions: dict[str, str] = {}
"""User by token. A real application signs its tokens or keeps them in a database."""
history: deque[dict[str, str]] = deque(maxlen=50)


def authenticate(handshake: Handshake) -> Identity | None:
    """Admit browsers with the right cookie, which they send with the upgrade."""
    name = sessions.get(handshake.cookies.get("session", ""))
    return None if name is None else Identity(name, key=name)


def authorize(peer: Peer, verb: str, subject: str | int) -> bool:
    """Clients only send requests, which the server checks: publications could imitate other users."""
    return verb != "publish" and str(subject).startswith("chat.")


bus = Bus(authenticate=authenticate, authorize=authorize)


@frozen
class Say:
    text: str = field(validator=[min_len(1), max_len(500)])


@frozen
class Said:
    name: str
    text: str


@bus.handle("chat.say")
async def say(body: Say, ctx: Context) -> None:
    line = asdict(Said(ctx.identity, body.text))
    history.append(line)
    await ctx.bus.publish("chat.line", line)


@bus.handle("chat.history")
async def lines() -> list[dict[str, str]]:
    return list(history)


app = FastAPI()
polybus.fastapi.attach(app, bus, script="/polybus.js")  # ws://.../bus


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(HERE / "page.html")


@app.post("/login/{name}")
async def login(name: str, response: Response) -> None:
    token = secrets.token_urlsafe(16)
    sessions[token] = name[:30]
    response.set_cookie("session", token, httponly=True, samesite="lax")


if __name__ == "__main__":
    polybus.fastapi.run(app, port=int(os.environ.get("PORT", "8000")))
