"""The systems that are measured, each with its driver in a module of this folder.

To add a peer, write a module with `serve` and `connect` (see `_base.Driver`; with `light` for fan-out and idle connections)
and name it here with the workloads that it takes part in.
"""

from __future__ import annotations

from ._base import System
from ._needs import NATS_PY, NATS_SERVER, NODE, NPM_UBRE, NPM_WS, Need, package

__all__ = ["CEILING", "MAIN", "PEERS", "REFERENCE", "SYSTEMS"]

_REQUESTS = frozenset({"W1", "W1_awake", "W2_64", "W2_256", "W6"})
_ROUND_TRIPS = frozenset({"W1", "W1_awake", "W2_64", "W2_256"})
_ONE_WAY = frozenset({"W3_64", "W3_4k"})
_FAN_OUT = frozenset({"W4_100", "W4_1000"})
_IDLE = frozenset({"W5", "W5_5000"})
_ALL = _REQUESTS | _ONE_WAY | _FAN_OUT | _IDLE

REFERENCE = "R@asyncio"
CEILING = "F@asyncio"
MAIN = "ubre-tcp@asyncio"
_WEBSOCKET, _NATS = "ubre-ws@asyncio", "nats-native@asyncio"


def _systems() -> dict[str, System]:
    systems = [
        System(name="R", loop="asyncio", driver="raw", workloads=_ALL, note="limit"),
        System(name="R", loop="uvloop", driver="raw", workloads=_ALL, note="limit"),
        System(name="F", loop="asyncio", driver="futures", workloads=_REQUESTS | _ONE_WAY, note="limit"),
        System(name="F", loop="uvloop", driver="futures", workloads=_REQUESTS | _ONE_WAY, note="limit"),
        System(
            name="websockets", loop="asyncio", driver="bare_websockets", workloads=_ALL, note="bare echo", beside=_WEBSOCKET
        ),
    ]
    for loop in ("asyncio", "uvloop", "trio"):
        systems += [
            _ours("ubre-tcp", loop, _ALL, url="ubre+tcp://127.0.0.1:0", body="json"),
            _ours(
                "ubre-binary-tcp",
                loop,
                _REQUESTS | _ONE_WAY,
                url="ubre+tcp://127.0.0.1:0?format=binary&body=raw",
                body="bytes",
            ),
            _ours("csb-tcp", loop, _REQUESTS | _ONE_WAY, url="csb+tcp://127.0.0.1:0", body="bytes"),
            _ours("csb-json-tcp", loop, _REQUESTS | _ONE_WAY, url="csb+tcp://127.0.0.1:0", body="json"),
            _ours("uprotocol-tcp", loop, _REQUESTS | _ONE_WAY, url="uprotocol+tcp://127.0.0.1:0", body="json"),
            _ours(
                "uprotocol-protobuf-tcp",
                loop,
                _REQUESTS | _ONE_WAY,
                url="uprotocol+tcp://127.0.0.1:0?format=protobuf",
                body="bytes",
            ),
            _ours("ubre-ws", loop, _ALL, url="ubre+ws://127.0.0.1:0/bus", body="json"),
            _ours("jrep-ws", loop, _ALL, url="jrep+ws://127.0.0.1:0/bus", body="json"),
        ]
    options = {"url": "ubre+ws://127.0.0.1:0/bus", "body": "json"}
    systems += [
        System(name="ubre-uvicorn", loop=loop, driver="under_uvicorn", workloads=_ALL, options=options, note="polybus")
        for loop in ("asyncio", "uvloop")
    ]
    for loop in ("asyncio", "uvloop"):
        systems += [
            _brokered("csb-broker", loop, "bus", "polybus, three processes"),
            _brokered("csb-broker-raw", loop, "raw", "raw ends, so the broker alone"),
        ]
    systems += [_nats("nats", "asyncio", "nats_py", "bytes"), _nats("nats-json", "asyncio", "nats_py", "json")]
    for loop in ("asyncio", "uvloop", "trio"):
        systems.append(_nats("nats-native", loop, "nats_native", "json"))
        systems.append(_nats("nats-native-bytes", loop, "nats_native", "bytes"))
        systems.append(_nats("nats-cluster", loop, "nats_cluster", "json"))
    for name, driver, body, beside, needs in (
        ("websockets-json", "bare_websockets", "json", _WEBSOCKET, ()),
        ("picows", "picows_peer", "bytes", _WEBSOCKET, (package("picows"),)),
        ("picows-json", "picows_peer", "json", _WEBSOCKET, (package("picows"),)),
        ("zmq", "pyzmq_peer", "bytes", MAIN, (package("pyzmq"),)),
        ("zmq-json", "pyzmq_peer", "json", MAIN, (package("pyzmq"),)),
        ("grpc", "grpc_aio", "bytes", MAIN, (package("grpcio"),)),
        ("grpc-json", "grpc_aio", "json", MAIN, (package("grpcio"),)),
        ("socketio", "socket_io", "json", _WEBSOCKET, (package("python-socketio"), package("aiohttp"), package("uvicorn"))),
    ):
        systems.append(_peer(name, driver, beside, needs, body=body))
    node = (NODE, NPM_UBRE, NPM_WS)
    ours = {"url": "ubre+ws://127.0.0.1:0/bus", "body": "json"}
    systems.append(_peer("npm-ubre", "npm_ubre", _WEBSOCKET, node, **ours, server="ours"))
    systems.append(_peer("npm-ubre-both", "npm_ubre", _WEBSOCKET, node, body="json", server="node"))
    return {system.key: system for system in systems}


def _peer(name: str, driver: str, beside: str, needs: tuple[Need, ...], **options: str) -> System:
    return System(
        name=name,
        loop="asyncio",
        driver=driver,
        workloads=_ROUND_TRIPS | _ONE_WAY,
        options=options,
        needs=needs,
        beside=beside,
    )


def _brokered(name: str, loop: str, endpoints: str, note: str) -> System:
    options = {"url": "csb+tcp://127.0.0.1:0", "body": "bytes", "endpoints": endpoints, "loop": loop}
    return System(name=name, loop=loop, driver="csb_broker", workloads=_ROUND_TRIPS, options=options, note=note)


def _nats(name: str, loop: str, driver: str, body: str) -> System:
    theirs = driver == "nats_py"
    return System(
        name=name,
        loop=loop,
        driver=driver,
        workloads=_ROUND_TRIPS | _ONE_WAY,
        options={"url": "nats+tcp://127.0.0.1:0", "body": body},
        note=f"{'nats-py' if theirs else 'polybus'}, nats-server",
        needs=(NATS_SERVER, NATS_PY) if theirs else (NATS_SERVER,),
        beside=_NATS if theirs else "",
    )


def _ours(name: str, loop: str, workloads: frozenset[str], **options: str) -> System:
    return System(name=name, loop=loop, driver="ours", workloads=workloads, options=options, note="polybus")


SYSTEMS = _systems()

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
"""What the tables of peers compare, with ours and the limits."""
