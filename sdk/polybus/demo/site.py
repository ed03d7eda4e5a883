"""A site with pages and frames, and a gateway behind it: a process. ``python -m polybus.demo.site VEHICLE``

The page is of 127.0.0.1 and its frames of localhost, so they are of different sites. The frame *panel* talks with the page, the
frame *door* through the page with the vehicle behind the gateway. Both speak UBRE, written by hand here.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from .. import Backoff, Bus, Identity, Route, bridge, connect
from ..plugins import Handshake
from .children import leave_with_parent

__all__ = ["main"]

_ROUTES = (Route("vehicle.>", "{rest}"), Route("door.*", "vehicle.door.{1}", {"publish"}, reverse=True))
_TOKEN = "door-frame"  # a demo on a loopback address

WIRE = """
// UBRE over a port, as small as it can be.
export function wire(port) {
  const pending = new Map(), handlers = {}, topics = {}
  const send = (message) => port.postMessage(JSON.stringify(message))
  port.onmessage = async ({ data }) => {
    const message = JSON.parse(data)
    if ('request' in message) send({ success: message.id, body: await handlers[message.request](message.body) })
    else if ('publish' in message) topics[message.publish]?.(message.body)
    else if ('success' in message) pending.get(message.success)?.resolve(message.body)
    else if ('fail' in message) pending.get(message.fail)?.reject(message.body)
  }
  port.addEventListener('close', ({ reason }) => pending.forEach(({ reject }) => reject(reason)))
  return {
    handlers,
    ask: (request, body) => new Promise((resolve, reject) => {
      const id = pending.size + 1
      pending.set(id, { resolve, reject })
      send({ request, id, body })
    }),
    subscribe: (topic, told) => { topics[topic] = told; send({ subscribe: topic }) },
  }
}
"""

PAGE = """<!doctype html><title>polybus demo</title><h1>A page, two frames</h1>
<iframe id=panel></iframe> <iframe id=door></iframe> <iframe id=stranger></iframe>
<script type=module>
import { serveFrame, pump } from '/polybus.js'
import { wire } from '/wire.js'

const elsewhere = location.origin.replace('127.0.0.1', 'localhost')
const url = location.origin.replace('http', 'ws') + '/bus'
const show = window.show = { epochs: { panel: 0, door: 0 }, ends: [], rejected: [], said: [], pumps: [] }
const frame = (name, onport, origin = elsewhere) => {
  const element = document.getElementById(name)
  serveFrame(element, { origin, onport, onreject: (hello) => show.rejected.push(hello) })
  element.src = `${elsewhere}/frame?name=${name}`
}
addEventListener('message', ({ data }) => 'said' in Object(data) && show.said.push(data.said))
frame('panel', (port, { epoch }) => {
  show.panel = wire(port)
  show.panel.handlers.name = () => 'the page'
  show.epochs.panel = epoch
  port.addEventListener('close', ({ reason }) => show.ends.push(reason))
})
frame('door', (port, { epoch }) => {
  show.pumps.push(pump(port, url, { token: 'TOKEN' }))
  show.epochs.door = epoch
})
show.stranger = () => frame('stranger', () => show.said.push('a stranger has a port'), 'https://expected.example')
show.borrow = () => { try { pump(new MessageChannel().port1, url, {}) } catch ({ name }) { return name } }
</script>""".replace("TOKEN", _TOKEN)

FRAME = """<!doctype html><title>frame</title><p id=text>waiting</p>
<script type=module>
import { connectToHost } from '/polybus.js'
import { wire } from '/wire.js'

const name = new URL(location).searchParams.get('name')
const host = location.origin.replace('localhost', '127.0.0.1')
const say = (said) => { document.getElementById('text').textContent = JSON.stringify(said); parent.postMessage({ said }, host) }
try {
  const bus = wire(await connectToHost({ origins: [host], timeout: name === 'stranger' ? 500 : 10000 }))
  bus.handlers.title = async () => `a panel of ${await bus.ask('name')}`
  bus.handlers.never = () => new Promise(() => {})
  if (name === 'door') {
    bus.subscribe('vehicle.door.moved', (door) => say(['told', door.position]))
    say(['moved', (await bus.ask('vehicle.door.move', { door: 'rear', position: 40 })).position])
  }
} catch (error) {
  say([String(error.message ?? error)])
}
</script>"""


def _authenticate(handshake: Handshake) -> Identity | None:
    """Frames come with a token of their own; whoever has none stays outside."""
    return Identity("the door frame") if handshake.headers.get("authorization") == f"Bearer {_TOKEN}" else None


def _app(vehicle: str) -> Any:
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse, Response

    from ..fastapi import attach

    left, right = Bus(authenticate=_authenticate), Bus()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        backoff = Backoff(initial=0.05, maximum=0.4)
        async with connect(vehicle, bus=right, backoff=backoff, wait=10), left, bridge(left, right, routes=_ROUTES):
            yield

    app = FastAPI(lifespan=lifespan)
    attach(app, left, path="/bus", script="/polybus.js")
    for path, content, kind in (
        ("/", PAGE, "text/html"),
        ("/frame", FRAME, "text/html"),
        ("/wire.js", WIRE, "text/javascript"),
    ):
        app.add_api_route(path, _giving(content, kind, Response), response_class=HTMLResponse)
    return app


def _giving(content: str, kind: str, response: Any) -> Any:
    async def give() -> Any:
        return response(content, media_type=kind)

    return give


def main() -> None:
    """The process."""
    from ..fastapi import run

    parser = argparse.ArgumentParser()
    parser.add_argument("vehicle")
    arguments = parser.parse_args()
    leave_with_parent()
    run(_app(arguments.vehicle), host="127.0.0.1", port=0, drain=5.0, log_level="warning")


if __name__ == "__main__":
    main()
