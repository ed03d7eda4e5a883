"""No buffer without a bound: everything in the core that can grow is listed here, with what bounds it.

A container that is new makes the test fail: give it a bound, and a line. What is charged is also within `Limits.total_bytes`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import polybus

PACKAGE = Path(polybus.__file__).parent
MODULES = (
    "acquaintance answering asking authority backlog bus calls channel channel_calls channelled connecting crowd"
    " deliveries distribution ends event_stream execution fanout inbox incoming interest known_peer inflow life link links"
    " loopback openings outbox outflow passages peer pieces publishing relaying reply router routing runtime serving"
    " subject_index subscription turns urgency workers"
).split()
GROWING = {"Counter", "OrderedDict", "UrgentQueue", "bytearray", "defaultdict", "deque", "dict", "list", "set"}

OURS = "grows with what this application does, not with what peers send"
BOUNDS: dict[str, str] = {
    "authority._allowed": "1,024 answers for each peer, then it is emptied",
    "broker._broker._doors": "two",
    "broker._broker._listening": OURS,
    "broker.ends._inside": "Limits.peers",
    "broker.ends.ends": "Limits.peers",
    "broker.roster._resting": "MOST_RESTING numbers",
    "broker.roster.clients": "Limits.peers, and MOST_RESTING numbers",
    "broker.readers._slow": "Limits.peers",
    "broker.roster.servers": "Limits.peers",
    "bus._entrances": OURS,
    "bus._passages": OURS,
    "bus._recorders": OURS,
    "life._guests": OURS,
    "pieces._waiting": "one frame and 1 MiB behind it: then all is handled at once",
    "protocols.csb.crowded._early": "Limits.queue_bytes, then the connection ends",
    "protocols.csb.crowded._numbered": "Limits.peers: the crowd sends the others away at once",
    "protocols.csb.crowded._parties": "Limits.peers: the crowd sends the others away at once",
    "protocols.csb.crowded._resting": "those of `_parties` with ids that rest",
    "protocols.csb.ids.pending": "65,536 of each peer, and Limits.pending",
    "protocols.csb.ids.resting": "those of `pending` that nobody waits for",
    "protocols.csb.reader._subjects": "1,024 subjects, then it is emptied",
    "protocols.csb.session._events": "what one chunk holds: taken after each",
    "protocols.csb.session._frames": "what one chunk is answered with: taken after each",
    "protocols.csb.writer._names": "1,024 subjects, then it is emptied",
    "transports._http_client._queue": "HIGH_WATER and one frame: then the link keeps what follows in its outbox",
    "transports._errai_channel._claiming": "two for each session, for the time of a handshake",
    "transports._listen.silent": "Limits.handshakes: the gate of the listener",
    "transports._errai_events._data": "an event larger than twice Limits.message ends the connection",
    "transports._errai_requests._given": "the headers that the application gives",
    "transports._http_listener._endings": "the routes of an endpoint",
    "transports._http_listener._exact": "the routes of an endpoint",
    "transports._errai_connection._posting": "requests whose bodies come: they are charged, and end when they are slow",
    "transports._errai_connection._queue": "HIGH_WATER and one frame: then the link keeps what follows in its outbox",
    "transports._errai_intake._unread": "Limits.payload: ErraiConnection.room; a client reads all before it asks again",
    "transports._errai_server._sessions": "Limits.peers and handshakes: the gate of the listener; one that is silent ends",
    "transports._events_client._waiting": "64 requests that are posted at the same time",
    "transports._events_connection._posted": "Limits.running + waiting: more are answered at once",
    "transports._events_connection.answers": "4,096 of a batch, Limits.outbox_bytes of a peer",
    "transports._events_server._connections": "Limits.peers: the gate of the listener; one that is silent ends",
    "bus._checked": "4,096 subjects, then it is emptied",
    "channel._ahead": "CREDIT_BYTES: each entry counts for 200 bytes at least",
    "channel._items": "CREDIT items, _TOLERANCE * CREDIT_BYTES and one item more; charged to the peer",
    "channel._readers": OURS,
    "channel._line": OURS,
    "connecting._checked_headers": OURS,
    "crowd._expires": "Limits.peers",
    "crowd._knocking": "Limits.peers",
    "crowd._unasked": "Limits.peers",
    "crowd.peers": "Limits.peers",
    "crowd.said": "Limits.running messages of a stranger, a sixteenth of Limits.queue_bytes; charged",
    "deliveries._publishers": OURS,
    "ends._asked": "one for each peer",
    "ends._names": "one for each peer",
    "ends._proofs": "one for each peer",
    "ends._told": "one for each peer",
    "ends.held_out": "one for each peer",
    "ends.pending": "one for each peer",
    "fanout._bare": "one for each peer",
    "fanout._hinted": "256 subjects",
    "fanout._stopped": "256 subjects",
    "fanout._turns": OURS,
    "fanout._inbound": "4,096 subjects, then it is emptied",
    "fanout._interest": OURS,
    "fanout._restoring": "one for each peer",
    "fanout._unasked": "one for each peer",
    "fanout.routes": "4,096 subjects, then it is emptied",
    "event_stream._waiters": OURS,
    "execution.middleware": OURS,
    "inbox._overflow": "Limits.queue_bytes; charged",
    "inbox._queue": "`queue` messages and Limits.queue_bytes, and what is held back; charged",
    "inbox._room": OURS,
    "link._taps": "as bus._recorders, and one",
    "inflow.deferred": "one for each channel of the link, for the time of one chunk",
    "gateway.joining._entered": "two buses",
    "gateway.passage._known": "1,024 subjects, then it is emptied",
    "gateway.passage.calls": "Limits.running, waiting and channels of each peer",
    "gateway.underpass._through": "Limits.channels of each peer",
    "incoming.calls": "Limits.running + waiting",
    "openings.calls": "Limits.running + waiting",
    "runtime.addresses": "one for each link that others have opened, and one while something is kept for it still",
    "backlog.stuck": "one for each peer",
    "answering.expected": "Limits.running",
    "answering.large": "Limits.running; charged",
    "openings.channels": "Limits.channels of each direction",
    "channelled.channels": "Limits.channels of each direction",
    "incoming.patterns": "Limits.subscriptions; charged to the peer",
    "incoming.undecided": "Limits.waiting messages, Limits.waiting_bytes; charged to the peer",
    "turns.waiting": "Limits.waiting messages, Limits.waiting_bytes; charged to the peer",
    "life._holders": OURS,
    "answering.scopes": "two questions to `authorize` at a time, and one for each time that a handler is told",
    "life._inboxes": OURS,
    "life._listeners": OURS,
    "life._opened": OURS,
    "life._own_links": OURS,
    "life._subscriptions": OURS,
    "loopback.calls": "Limits.pending, twice Limits.channels",
    "outbox._entries": "Limits.outbox and outbox_bytes",
    "outbox._shares": "Limits.outbox",
    "outbox.droppable": "Limits.outbox",
    "backlog._room": OURS,
    "acquaintance._late": "30 questions, one a second",
    "peer._unsent": "Limits.outbox",
    "known_peer.pending": "Limits.pending",
    "protocols.ubre.json_reader._by_letter": "made once",
    "protocols.ubre.json_reader._by_verb": "made once",
    "protocols.ubre.session._events": "what one chunk holds: taken after each",
    "protocols.ubre.session._frames": "what one message makes: taken after each",
    "relaying._before": "8,192 ids of 64 characters",
    "relaying._last": "8,192 numbers",
    "relaying._lately": "8,192 numbers",
    "relaying._recent": "8,192 ids of 64 characters",
    "router._by_uri": OURS,
    "router._handlers": OURS,
    "router._listens": OURS,
    "runtime._detached": OURS,
    "runtime.crowded": "one for each peer",
    "runtime.links": "Limits.peers, and the links that this bus opened",
    "runtime.timed": "one for each peer and link",
    "serving._inside": "Limits.peers",
    "serving.links": "Limits.peers",
    "subject_index._cache": "4,096 subjects, then it is emptied",
    "subject_index._exact": "Limits.subscriptions of each peer; charged to the peer",
    "subject_index.children": "Limits.subscriptions of each peer, 64 tokens; charged to the peer beyond eight",
    "subject_index.here": "as its node",
    "subject_index.rest": "as its node",
    "subscription._readers": OURS,
    "transports._asgi._pending": "what is not read makes the link pause: HIGH_WATER, then the outbox",
    "transports._lengths._parts": "Limits.message; charged after Limits.frame_timeout",
    "transports._http_server._slow": "Limits.handshakes",
    "transports._listen._arrivals": "Limits.handshakes",
    "transports._race._errors": "the addresses of a name",
    "transports._stream._early": "one chunk: nothing is read before the link is there",
    "transports._wire_asyncio._pending": "HIGH_WATER, then the link pauses and its outbox fills; charged while paused",
    "transports._wire_pump._pending": "HIGH_WATER, then the link pauses and its outbox fills; charged while paused",
    "transports._ws_client.rest": "the head of an answer, and one chunk",
    "transports._ws_frames._fragments": "MAX_FRAGMENTS, Limits.message",
    "transports._ws_frames._keys": "a fixed size",
    "transports._ws_frames._parts": "Limits.message; charged after Limits.frame_timeout",
    "transports._ws_server._head": "the head of a request",
    "transports._memory_transport._inbox": "HIGH_BYTES or HIGH_FRAMES, then the outbox of the link; charged while paused",
    "tunnel.frames._arrived": "what one chunk holds, for the time in which it is looked at",
    "tunnel.frames._queue": "the outbox of the inner link: it is told to pause with the first; cut after Limits.write_timeout",
    "urgency._levels": "what its owner lets in: Limits.outbox and outbox_bytes, or Limits.waiting and waiting_bytes; charged",
    "workers._idle": "64 workers",
    "workers._ready": "Limits.total_running, and one for each `on` handler",
}


def sources() -> Iterator[Path]:
    yield from (PACKAGE / f"{module}.py" for module in MODULES)
    yield from sorted((PACKAGE / "transports").glob("*.py"))
    for folder in ("protocols/ubre", "protocols/csb", "broker", "tunnel", "gateway"):
        yield from sorted((PACKAGE / folder).glob("*.py"))


def grows(value: ast.AST | None) -> bool:
    """Whether an expression is, or may be, a new container that is empty."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        return value.func.id in GROWING and not any(keyword.arg == "maxlen" for keyword in value.keywords)
    if isinstance(value, ast.IfExp):
        return grows(value.body) or grows(value.orelse)
    if isinstance(value, ast.BoolOp):
        return any(map(grows, value.values))
    return (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, (ast.List, ast.Set)) and not value.elts)


def containers(path: Path) -> Iterator[str]:
    """All attributes that are set to one, as ``module.attribute``."""
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and grows(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (f"{module}.{target.attr}" for target in targets if isinstance(target, ast.Attribute))


def test_everything_that_can_grow_has_a_bound() -> None:
    found = {name for path in sources() for name in containers(path)}
    assert found - BOUNDS.keys() == set(), "what bounds these? Then a line in BOUNDS"
    assert BOUNDS.keys() - found == set(), "these are gone: their lines too"
