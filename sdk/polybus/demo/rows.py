"""Rows of the demo: every protocol in all its forms, over every transport that carries its frames."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from .console import STEPS, Make, play_row
from .nested import nested_rows
from .plants import AnsweringPlant, BrokeredPlant, make_plant
from .play import DemoRow
from .workers import worker_rows

_TRANSPORTS = ("memory", "tcp", "tls", "unix", "ws", "wss")
_BROKERED = ("tcp", "ws")
"""Between the clients and the broker; the back end is always connected to it by TCP."""
_CHANNELS = ("websocket", "events", "poll")
"""Ways of J.REP over HTTP back to the client."""
_ANSWERED = ("requests", "failing handler", "no handler", "deadline", "drain")
"""Steps in which the server begins nothing: over HTTP a server of uProtocol cannot."""
_WITHOUT_STREAMS = tuple(step for step in STEPS if step not in ("stream", "channel"))
"""Of `up`, whose wire has no form for them."""
_ON_FABRIC = tuple(step for step in _WITHOUT_STREAMS if step != "slow consumer")
"""Zenoh cuts off who does not read, and says nothing of what it had for him; what is more urgent overtakes the rest."""
_ENTITY = "?entity=//plant.example/tanks/1"
_PROTOBUF = f"{_ENTITY}&format=protobuf"


def _row(
    protocol: str, variant: str, transport: str, query: str = "", make: Make = make_plant, steps: Sequence[str] = tuple(STEPS)
) -> DemoRow:
    return DemoRow(protocol, variant, transport, tuple(steps), play_row(transport, f"{protocol}+{{address}}{query}", make))


def _everywhere(protocol: str, variants: Mapping[str, str]) -> Iterator[DemoRow]:
    """Every variant, by its options, over every transport."""
    for transport in _TRANSPORTS:
        for variant, query in variants.items():
            yield _row(protocol, variant, transport, query)


def all_rows() -> list[DemoRow]:
    """Every row of every protocol, those over a bridge, and that of several workers."""
    http = {"json": _ENTITY, "protobuf": f"{_PROTOBUF}&content=binary"}
    return [
        *_everywhere("ubre", {"json": "", "spec": "?dialect=spec", "binary": "?format=binary"}),
        _row("ubre", "json", "fastapi"),
        *_everywhere("csb", {"direct": ""}),
        *(_row("csb", "broker", name, make=BrokeredPlant) for name in _BROKERED),
        *_everywhere("jrep", {"errai": "", "plain": "?values=plain&dialect=legacy"}),
        *(_row("jrep", channel, "http", f"?channel={channel}") for channel in _CHANNELS),
        *_everywhere("uprotocol", {"json": _ENTITY, "protobuf": _PROTOBUF}),
        *(_row("uprotocol", variant, "http", query, AnsweringPlant, _ANSWERED) for variant, query in http.items()),
        *(_row("up", "umessage", name, steps=_WITHOUT_STREAMS) for name in _TRANSPORTS),
        _row("up", "umessage", "zenoh", steps=_ON_FABRIC),
        *nested_rows(),
        *worker_rows(),
    ]


def chosen_rows(rows: Iterable[DemoRow], words: Iterable[str]) -> list[DemoRow]:
    """The rows that ``--only`` names. Words of one kind (transport, variant, protocol) are alternatives; the kinds narrow each
    other. ValueError where a word names nothing, or nothing is left.
    """
    left = list(rows)
    kinds = [{getattr(row, kind) for row in left} for kind in ("protocol", "variant", "transport")]
    wanted = {word.strip() for word in words if word.strip()}
    unknown = wanted - set().union(*kinds)
    if unknown:
        known = ", ".join(sorted(word for kind in kinds for word in kind))
        raise ValueError(f"nothing here is called {', '.join(sorted(unknown))}; there are: {known}")
    for kind, words_of_kind in zip(("protocol", "variant", "transport"), kinds, strict=True):
        if chosen := wanted & words_of_kind:
            left = [row for row in left if getattr(row, kind) in chosen]
    if not left:
        raise ValueError(f"nothing fits {', '.join(sorted(wanted))} at once")
    return left
