"""The measured systems, each with its driver in a module of this folder.

To add a peer, write a module with `serve` and `connect` (see `base.Driver`; with `light` for fan-out and idle connections)
and register it here with its workloads.
"""

from __future__ import annotations

import subprocess
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Any, cast

from attrs import Factory, frozen

from .base import Driver, Wire, nats_server

__all__ = ["CEILING", "MAIN", "PEERS", "REFERENCE", "SYSTEMS", "System", "version"]

_MESSAGES = frozenset({"serial", "asleep", "64", "256", "one-way"})
_BODIES = _MESSAGES | {"one-way-4k", "large"}
_ALL = _BODIES | {"fan-out", "idle"}

REFERENCE = "R@asyncio"
CEILING = "F@asyncio"
MAIN = "ubre-tcp@asyncio"
_WEBSOCKET, _NATS = "ubre-ws@asyncio", "nats-native@asyncio"


@frozen(kw_only=True)
class System:
    """One row: a driver with its options on one event loop.

    `beside` is our system for comparison, over the same kind of way: TCP, WebSocket, or an engine in between. `needs` are
    Python distributions, and ``nats-server``.
    """

    name: str
    loop: str = "asyncio"
    driver: str
    workloads: frozenset[str]
    options: dict[str, Any] = Factory(dict)
    needs: tuple[str, ...] = ()
    beside: str = ""

    @property
    def key(self) -> str:
        return f"{self.name}@{self.loop}"

    @property
    def missing(self) -> str:
        """Requirement that is not installed; empty if all are."""
        return ", ".join(need for need in self.needs if not version(need))

    def load(self) -> Driver:
        return cast(Driver, import_module(f"bench.systems.{self.driver}"))

    def light(self) -> Wire:
        """Wire for light clients, of a system with workloads that need them."""
        wire: Wire = import_module(f"bench.systems.{self.driver}").light(self.options)
        return wire

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        """Run `main` on this system's event loop."""
        import anyio

        if self.loop == "trio":
            anyio.run(main, backend="trio")
        else:
            anyio.run(main, backend="asyncio", backend_options={"use_uvloop": self.loop == "uvloop"})


def version(need: str) -> str:
    """Version of a Python distribution or of nats-server; empty if not installed."""
    if need == "nats-server":
        path = nats_server()
        if path is None:
            return ""
        words = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout.split()
        return words[-1].removeprefix("v") if words else "of no version"
    try:
        return version_of(need)
    except PackageNotFoundError:
        return ""


def _ours(
    name: str, url: str, body: str, workloads: frozenset[str], *, way: str = "direct", trio: bool = True
) -> Iterable[System]:
    """polybus at both ends, on every event loop that supports it."""
    for loop in ("asyncio", "uvloop", "trio") if trio else ("asyncio", "uvloop"):
        options = {"url": url, "body": body, "way": way, "loop": loop}
        needs = ("nats-server",) if url.startswith("nats") else ()
        yield System(name=name, loop=loop, driver="ours", workloads=workloads, options=options, needs=needs)


def _peers(name: str, driver: str, beside: str, *needs: str, plain: bool = True) -> Iterable[System]:
    """Another library, with opaque bytes and with JSON that both ends read and write."""
    for suffix, body in (("", "bytes"), ("-json", "json")) if plain else (("", "json"),):
        options = {"body": body}
        yield System(name=name + suffix, driver=driver, workloads=_MESSAGES, options=options, needs=needs, beside=beside)


_TCP, _WS = "127.0.0.1:0", "127.0.0.1:0/bus"

SYSTEMS = {
    system.key: system
    for system in (
        System(name="R", driver="raw", workloads=_ALL),
        System(name="R", loop="uvloop", driver="raw", workloads=_ALL),
        System(name="F", driver="raw", workloads=_BODIES, options={"futures": True}),
        System(name="F", loop="uvloop", driver="raw", workloads=_BODIES, options={"futures": True}),
        *_ours("ubre-tcp", f"ubre+tcp://{_TCP}", "json", _ALL),
        *_ours("ubre-binary-tcp", f"ubre+tcp://{_TCP}?format=binary&body=raw", "bytes", _BODIES),
        *_ours("csb-tcp", f"csb+tcp://{_TCP}", "bytes", _BODIES),
        *_ours("csb-json-tcp", f"csb+tcp://{_TCP}", "json", _BODIES),
        *_ours("csb-broker", f"csb+tcp://{_TCP}", "bytes", _MESSAGES, way="broker", trio=False),
        *_ours("uprotocol-tcp", f"uprotocol+tcp://{_TCP}", "json", _BODIES),
        *_ours("uprotocol-protobuf-tcp", f"uprotocol+tcp://{_TCP}?format=protobuf", "bytes", _BODIES),
        *_ours("ubre-ws", f"ubre+ws://{_WS}", "json", _ALL),
        *_ours("ubre-uvicorn", f"ubre+ws://{_WS}", "json", _ALL, way="uvicorn", trio=False),
        *_ours("jrep-ws", f"jrep+ws://{_WS}", "json", _BODIES),
        *_ours("nats-native", f"nats+tcp://{_TCP}", "json", _MESSAGES, way="nats"),
        *_ours("nats-cluster", f"nats+tcp://{_TCP}", "json", _MESSAGES, way="cluster"),
        System(name="websockets", driver="bare_websockets", workloads=_ALL, options={"body": "bytes"}, beside=_WEBSOCKET),
        System(
            name="websockets-json", driver="bare_websockets", workloads=_MESSAGES, options={"body": "json"}, beside=_WEBSOCKET
        ),
        *_peers("socketio", "socket_io", _WEBSOCKET, "python-socketio", "aiohttp", "uvicorn", plain=False),
        *_peers("nats", "nats_py", _NATS, "nats-server", "nats-py"),
        *_peers("grpc", "grpc_aio", MAIN, "grpcio"),
    )
}

PEERS = (
    REFERENCE,
    CEILING,
    MAIN,
    "ubre-binary-tcp@asyncio",
    _WEBSOCKET,
    _NATS,
    "nats-cluster@asyncio",
    *(key for key, system in SYSTEMS.items() if system.beside),
)
"""Systems of ``--peers``: the peers, ours and the limits."""
