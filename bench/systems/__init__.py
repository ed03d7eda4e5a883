"""The systems that are measured, each with its driver in a module of this folder.

To add a peer, write a module with `serve` and `connect` (see `_base.Driver`; with `light` for fan-out and idle connections)
and name it here with the workloads that it takes part in.
"""

from __future__ import annotations

from ._base import System
from ._helpers import has_nats

__all__ = ["CEILING", "MAIN", "REFERENCE", "SYSTEMS"]

_REQUESTS = frozenset({"W1", "W1_awake", "W2_64", "W2_256", "W6"})
_ROUND_TRIPS = frozenset({"W1", "W1_awake", "W2_64", "W2_256"})
_ONE_WAY = frozenset({"W3_64", "W3_4k"})
_FAN_OUT = frozenset({"W4_100", "W4_1000"})
_IDLE = frozenset({"W5", "W5_5000"})
_ALL = _REQUESTS | _ONE_WAY | _FAN_OUT | _IDLE

REFERENCE = "R@asyncio"
CEILING = "F@asyncio"
MAIN = "ubre-tcp@asyncio"


def _systems() -> dict[str, System]:
    systems = [
        System(name="R", loop="asyncio", driver="raw", workloads=_ALL, note="limit"),
        System(name="R", loop="uvloop", driver="raw", workloads=_ALL, note="limit"),
        System(name="F", loop="asyncio", driver="futures", workloads=_REQUESTS | _ONE_WAY, note="limit"),
        System(name="F", loop="uvloop", driver="futures", workloads=_REQUESTS | _ONE_WAY, note="limit"),
        System(name="websockets", loop="asyncio", driver="bare_websockets", workloads=_ALL, note="bare echo"),
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
    if has_nats():
        systems += [_nats("nats", "asyncio", "nats_py", "bytes"), _nats("nats-json", "asyncio", "nats_py", "json")]
        for loop in ("asyncio", "uvloop", "trio"):
            systems.append(_nats("nats-native", loop, "nats_native", "json"))
            systems.append(_nats("nats-native-bytes", loop, "nats_native", "bytes"))
    return {system.key: system for system in systems}


def _brokered(name: str, loop: str, endpoints: str, note: str) -> System:
    options = {"url": "csb+tcp://127.0.0.1:0", "body": "bytes", "endpoints": endpoints, "loop": loop}
    return System(name=name, loop=loop, driver="csb_broker", workloads=_ROUND_TRIPS, options=options, note=note)


def _nats(name: str, loop: str, driver: str, body: str) -> System:
    note = f"{'polybus' if driver == 'nats_native' else 'nats-py'}, nats-server"
    options = {"url": "nats+tcp://127.0.0.1:0", "body": body}
    return System(name=name, loop=loop, driver=driver, workloads=_ROUND_TRIPS | _ONE_WAY, options=options, note=note)


def _ours(name: str, loop: str, workloads: frozenset[str], **options: str) -> System:
    return System(name=name, loop=loop, driver="ours", workloads=workloads, options=options, note="polybus")


SYSTEMS = _systems()
