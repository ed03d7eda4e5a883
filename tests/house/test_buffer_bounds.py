"""No buffer without a bound: everything in the core that can grow is listed here, with what bounds it.

A container that is new makes the test fail: give it a bound, and a line. What is charged is also within `Limits.total_bytes`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import polybus

PACKAGE = Path(polybus.__file__).parent
FOLDERS = """
_bridge _bus _core _handlers _link _peer _pubsub _rpc _tunnel bindings broker cluster
prometheus protocols/csb protocols/nats protocols/ubre protocols/up transports/_stream transports/_ws
transports/zenoh
""".split()
MODULES = ("_util/broadcast", "_util/pattern_index", "_util/priority_queue")
GROWING = {"Counter", "OrderedDict", "PriorityQueue", "bytearray", "defaultdict", "deque", "dict", "list", "set"}

OURS = "grows with what this application does, not with what peers send"
BOUNDS: dict[str, str] = {
    "cluster.arrivals._clients": "Limits.peers",
    "cluster.arrivals._coming": "4,096 nodes, and within them Limits.peers",
    "cluster.arrivals._names": "Limits.peers",
    "cluster.arrivals._newcomers": "Limits.peers",
    "cluster.arrivals._splices": "one of each node that is known",
    "cluster.arrivals.marked": "4,096 nodes",
    "cluster.arrivals.replies": "one of each node that is known, or joins within two seconds",
    "cluster.backbone._missing": "4,096 nodes",
    "cluster.backbone.nodes_known": "4,096 nodes",
    "cluster.children._running": OURS,
    "cluster.departures._claims": "each has one client at least that was parked",
    "cluster.departures._parked": "Limits.peers",
    "cluster.departures._secrets": "Limits.peers",
    "cluster.departures.cut": "4,096 nodes",
    "cluster.workers._slots": OURS,
    "cluster.workers._sockets": OURS,
    "cluster.workers._why_not": OURS,
    "cluster.workers.urls": OURS,
    "cluster.parking._waiting": "Limits.outbox and outbox_bytes; charged",
    "cluster.parking.cut": "4,096 nodes",
    "transports._stream.framer.parts": "one frame: its framer refuses more than Limits.message",
    "_core.workers._told": OURS,
    "_core.injection._entered": "the functions that one handler asks for",
    "_core.services.overrides": OURS,
    "prometheus.durations._recent": OURS,
    "prometheus.durations._tallies": OURS,
    "prometheus.durations.outcomes": "the codes",
    "_core.places._taken": "running= of the handler",
    "_core.places._waiting": "Limits.waiting of each peer, or Cluster.waiting; charged. Of the bus itself Limits.pending",
    "_link.confirmations._asked": OURS,
    "transports._stream.addresses._others": "64 addresses",
    "protocols.nats.framing._parts": "one operation: a payload over Limits.message is not kept",
    "_pubsub.announcer._interests": OURS,
    "_pubsub.announcer._behind": "Limits.subscriptions and one user, of each client",
    "_pubsub.group.members": OURS,
    "_pubsub.pubsub._groups": OURS,
    "_pubsub.publisher.client_routes": "4,096 subjects, then it is emptied",
    "protocols.nats.cluster.dialect._asked": "Limits.pending",
    "protocols.nats.cluster.dialect._fresh": "requests of one turn; what is over the limits is answered at once, and gone",
    "protocols.nats.cluster.dialect._turns": "what one chunk holds, until the turn after it is over",
    "protocols.nats.cluster.dialect._greeted": "4096 nodes that are not known, until the next look",
    "protocols.nats.cluster.dialect._held": "Cluster.running and waiting, and Limits.channels",
    "protocols.nats.cluster.dialect._nodes": "4,096 nodes",
    "cluster.durable.readers._durables": OURS,
    "protocols.nats.cluster.dialect._doubted": "nodes that are known, until the next look",
    "protocols.nats.cluster.dialect._handled": OURS,
    "protocols.nats.cluster.known_handlers._nodes": "4 MiB of patterns; of one node 1,024, and 32 KiB",
    "protocols.nats.cluster.known_handlers._present": "the patterns of _nodes",
    "protocols.nats.cluster.known_handlers._gone": "4 MiB of patterns, and Cluster.remember",
    "protocols.nats.cluster.known_handlers._wide": "those of _present and _gone",
    "protocols.nats.cluster.dialect._over": "1,024 requests",
    "protocols.nats.cluster.liveness._asked": "one question a node of those that have something of this one",
    "protocols.nats.cluster.liveness._nodes": "the same",
    "protocols.nats.connection.events": "what one chunk holds: taken after each",
    "protocols.nats.connection.frames": "what one chunk is answered with: taken after each",
    "protocols.nats.native._publications": "Limits.pending",
    "protocols.nats.native._pulled": OURS,
    "protocols.nats.native._waiting": "Limits.pending",
    "protocols.up.accounts._under_way": "Up(per_authority=) of each authority, and within Limits.waiting and running",
    "protocols.up.accounts._counts": "the same",
    "protocols.up.accounts._settled": "REMEMBERED",
    "protocols.up.accounts._older": "the same",
    "protocols.up.names._methods": OURS,
    "protocols.up.names._names": OURS,
    "protocols.up.names.subjects": "1,024 addresses, then it is emptied",
    "protocols.up.reader._known": "2,048 of up to 1,024 bytes, then it is emptied",
    "protocols.up.session._methods": "1,024 subjects, then it is emptied",
    "protocols.up.names._topics": OURS,
    "protocols.up.session._topics": "1,024 subjects, then it is emptied",
    "protocols.up.session._asked": "Limits.pending",
    "protocols.up.session._events": "what one chunk holds: taken after each",
    "protocols.up.session._frames": "what one chunk is answered with: taken after each",
    "protocols.up.services.methods": OURS,
    "protocols.up.services.topics": OURS,
    "protocols.nats.subscriptions._leaving": "4,096 sids",
    "protocols.nats.session._pings": OURS,
    "protocols.nats.subscriptions._sids": OURS,
    "protocols.nats.subscriptions.by_sid": OURS,
    "protocols.nats.subscriptions.refused": OURS,
    "cluster.durable.administration.durables": "one look at a store: its consumers",
    "cluster.durable.delivery._ends": "1,024 publications",
    "cluster.durable.reader._running": "concurrency= of the handler, queue= of the subscription",
    "cluster.durable.reader._waiting": "the same again; what comes beyond is given back",
    "cluster.durable.readers._handlers": OURS,
    "cluster.durable.readers._of_subscriptions": OURS,
    "cluster.durable.readers._readers": OURS,
    "_core.threads._line": "Limits.total_running, and concurrency= of `on` handlers: each is a call that runs",
    "_core.threads._waits": "Limits.total_running: each is a handler that runs",
    "_peer.negotiation._deferred": "Limits.waiting_bytes: a hello that does not fit is answered at once; charged",
    "_pubsub.peer_subscriptions._patterns": OURS,
    "_pubsub.peer_subscriptions.indices": OURS,
    "_core.access.grants": "1,024 answers for each peer, then it is emptied",
    "broker._broker._gates": "two",
    "broker._broker._listening": OURS,
    "broker.connections.ends": "Limits.peers",
    "broker.registry._resting": "MOST_RESTING numbers",
    "broker.registry.clients": "Limits.peers, and MOST_RESTING numbers",
    "broker.slow_readers._slow": "Limits.peers",
    "broker.registry.servers": "Limits.peers",
    "broker.participants.clients": "Limits.peers",
    "broker.participants.held": "Limits.peers",
    "broker.stats.dropped": "the reasons that there are",
    "protocols.csb.codec.chosen": OURS,
    "_handlers.lookup.entrances": OURS,
    "_handlers.lookup.sides": OURS,
    "_core.context.answer_headers": "what a handler sets; Limits.headers when it is sent",
    "_core.injection._made": "the same",
    "_core.injection.makers": OURS,
    "_core.injection.needs": OURS,
    "_core.outgoing.headers": "one message",
    "_core.services.outgoing": OURS,
    "_core.services.recorders": OURS,
    "_bus.lifecycle._guests": OURS,
    "_link.receiver._waiting": "one frame and 1 MiB behind it: then all is handled at once",
    "protocols.csb.crowded._early": "Limits.queue_bytes, then the connection ends",
    "protocols.csb.crowded._numbered": "Limits.peers: the crowd sends the others away at once",
    "protocols.csb.crowded._parties": "Limits.peers: the crowd sends the others away at once",
    "protocols.csb.crowded._resting": "those of `_parties` with ids that rest",
    "protocols.csb.crowded._sent_away": "Limits.peers, then the oldest is forgotten",
    "protocols.csb.ids.pending": "65,536 of each peer, and Limits.pending",
    "protocols.csb.ids.resting": "those of `pending` that nobody waits for",
    "protocols.csb.reader._subjects": "1,024 subjects, then it is emptied",
    "protocols.csb.session._events": "what one chunk holds: taken after each",
    "protocols.csb.session._frames": "what one chunk is answered with: taken after each",
    "protocols.csb.writer._names": "1,024 subjects, then it is emptied",
    "bindings.http.client._queue": "HIGH_WATER and one frame: then the link keeps what follows in its outbox",
    "bindings.jrep_http.websocket._claiming": "two for each session, for the time of a handshake",
    "transports._stream.listen.silent": "Limits.handshakes: the gate of the listener",
    "bindings.http.uvicorn.frames": "MAX_FRAGMENTS parts of one message, as large as it may be",
    "bindings.http.sse._data": "an event larger than twice Limits.message ends the connection",
    "bindings.jrep_http.requests._given": "the headers that the application gives",
    "bindings.http.listener._endings": "the routes of an endpoint",
    "bindings.http.listener._exact": "the routes of an endpoint",
    "bindings.jrep_http.connection._leaving": "one payload of each request that is being answered: HIGH_WATER and one in all",
    "bindings.jrep_http.connection._queue": "HIGH_WATER and one frame: then the link keeps what follows in its outbox",
    "bindings.jrep_http.intake._unread": "Limits.payload: Intake.room; a client reads all before it asks again",
    "bindings.jrep_http.server._sessions": "Limits.peers and handshakes: the gate of the listener; one that is silent ends",
    "bindings.cloudevents_http.client._waiting": "64 requests that are posted at the same time",
    "bindings.cloudevents_http.connection._leaving": "one for each request over HTTP that is being answered; charged",
    "bindings.cloudevents_http.connection._posted": "Limits.running + waiting: more are answered at once",
    "bindings.cloudevents_http.connection.answers": "4,096 of a batch, Limits.outbox_bytes of a peer",
    "bindings.cloudevents_http.server._connections": "Limits.peers: the gate of the listener; one that is silent ends",
    "_core.services.known": "4,096 subjects, then it is emptied",
    "_rpc.channel._ahead": "CREDIT_BYTES: each entry counts for 200 bytes at least",
    "_rpc.channel._items": "CREDIT items, _TOLERANCE * CREDIT_BYTES and one item more; charged to the peer",
    "_rpc.channel._readers": OURS,
    "_rpc.channel._line": OURS,
    "_bus.dialer._checked_headers": OURS,
    "_link.multiplexer._expires": "Limits.peers",
    "_link.multiplexer._offences": "Limits.peers",
    "_link.multiplexer._pending": "Limits.peers",
    "_link.multiplexer._unasked": "Limits.peers",
    "_link.multiplexer.peers": "Limits.peers",
    "_link.multiplexer.messages": "Limits.running messages of a stranger, a sixteenth of Limits.queue_bytes; charged",
    "_core.bus_identity._asked": "one for each peer",
    "_core.bus_identity._names": "one for each peer",
    "_core.bus_identity._proofs": "one for each peer",
    "_core.bus_identity._voices": "one for each peer",
    "_core.bus_identity._told": "one for each peer",
    "_core.bus_identity.held_out": "one for each peer",
    "_core.bus_identity.pending": "one for each peer",
    "_pubsub.recipients.gets_all": "one for each peer",
    "_pubsub.relay._hinted": "256 subjects",
    "_pubsub.relay._stopped": "256 subjects",
    "_pubsub.publisher._turns": OURS,
    "_pubsub.receiver.queues": "4,096 subjects, then it is emptied",
    "_pubsub.announcer._restoring": "one for each peer",
    "_pubsub.recipients.unconfirmed": "one for each peer",
    "_pubsub.publisher.routes": "4,096 subjects, then it is emptied",
    "_util.broadcast._waiters": OURS,
    "_core.executor.middleware": OURS,
    "_core.executor._proven": OURS,
    "_peer.queue._overflow": "Limits.queue_bytes; charged",
    "_peer.queue._queue": "`queue` messages and Limits.queue_bytes, and what is held back; charged",
    "_peer.queue._room": OURS,
    "_link.link.deferred": "one for each channel of the link, for the time of one chunk",
    "_bridge.bridge._entered": "two buses",
    "_bridge.route_side._known": "1,024 subjects, then it is emptied",
    "_bridge.route_side.calls": "Limits.running, waiting and channels of each peer",
    "_bridge.forward_tunnels._through": "Limits.channels of each peer",
    "_peer.inbound_calls.calls": "Limits.running + waiting",
    "_core.runtime.addresses": "one for each link that others have opened, and one while something is kept for it still",
    "_link.link.stalled": "one for each peer",
    "_peer.inbound_calls.expected": "Limits.running",
    "_peer.inbound_calls.large": "Limits.running; charged",
    "_peer.streams.channels": "Limits.channels of each direction",
    "_peer.subscriptions.patterns": "Limits.subscriptions; charged to the peer",
    "_peer.authorization_queue._waiting": "Limits.waiting messages, Limits.waiting_bytes; charged to the peer",
    "_peer.inbound_calls.waiting": "Limits.waiting messages, Limits.waiting_bytes; charged to the peer",
    "_bus.lifecycle._holders": OURS,
    "_peer.peer._scopes": "two questions to `authorize` at a time, and one for each time that a handler is told",
    "_pubsub.pubsub._handler_queues": OURS,
    "_pubsub.announcer._grouped": OURS,
    "_pubsub.announcer._told": "one for each link",
    "_pubsub.recipients._dialled": "one for each link that this bus has opened",
    "_bus.links._of_key": "one for each peer",
    "_pubsub.recipients.strangers": "one for each link that this bus has opened",
    "_bus.links.gates": OURS,
    "_bus.stored._taken": OURS,
    "_bus.stored._readers": OURS,
    "_bus.stored._streams": OURS,
    "_bus.stored.engines": OURS,
    "_bus.links.opened": OURS,
    "_bus.links.of_lifespan": OURS,
    "_pubsub.pubsub._subscriptions": OURS,
    "_rpc.loopback.calls": "Limits.pending, twice Limits.channels",
    "_link.send_queue._entries": "Limits.outbox and outbox_bytes",
    "_link.send_queue._shares": "Limits.outbox",
    "_link.send_queue.droppable": "Limits.outbox",
    "_link.recording._taps": OURS,
    "_peer.negotiation._late": "30 questions, one a second",
    "_peer.unsent_requests.replies": "Limits.outbox",
    "_util.deadlines._near": "half of what waits in its table, 128 at least",
    "_peer.peer.pending": "Limits.pending",
    "protocols.ubre.json_reader._by_letter": "made once",
    "protocols.ubre.json_reader._by_verb": "made once",
    "protocols.ubre.session._events": "what one chunk holds: taken after each",
    "protocols.ubre.session._frames": "what one message makes: taken after each",
    "_core.via._before": "8,192 ids of 64 characters",
    "_core.via._last": "8,192 numbers",
    "_core.via._lately": "8,192 numbers",
    "_core.via._recent": "8,192 ids of 64 characters",
    "_handlers.lookup.by_uri": OURS,
    "_handlers.handler._makers": OURS,
    "_handlers.lookup.handlers": OURS,
    "_handlers.lookup.subscribers": OURS,
    "_handlers.lookup.publications": OURS,
    "_core.runtime._detached": OURS,
    "_core.runtime.backlogged": "one for each peer",
    "_core.runtime.links": "Limits.peers, and the links that this bus opened",
    "_core.runtime.timed": "one for each peer and link",
    "_core.runtime._due": "two for each peer and link, and 64",
    "_core.admissions.hosts": "Limits.peers and Limits.handshakes of each gate",
    "_bus.acceptor.links": "Limits.peers",
    "_util.pattern_index._cache": "4,096 subjects, then it is emptied",
    "_util.pattern_index._exact": "Limits.subscriptions of each peer; charged to the peer",
    "_util.pattern_index.children": "Limits.subscriptions of each peer, 64 tokens; charged to the peer beyond eight",
    "_util.pattern_index.here": "as its node",
    "_util.pattern_index.rest": "as its node",
    "_peer.subscription._readers": OURS,
    "transports._ws.asgi._pending": "what is not read makes the link pause: HIGH_WATER, then the outbox",
    "bindings.http.server._slow": "Limits.handshakes",
    "transports._stream.listen._arrivals": "Limits.handshakes",
    "transports._stream.transport._early": "one chunk: nothing is read before the link is there",
    "transports._stream.asyncio_wire._pending": "HIGH_WATER, then the link pauses and its outbox fills; charged while paused",
    "transports._stream.pump_wire._pending": "HIGH_WATER, then the link pauses and its outbox fills; charged while paused",
    "transports._ws.client.rest": "the head of an answer, and one chunk",
    "protocols.up.filters._wanted": OURS,
    "transports.zenoh.copies._latest": "the last sample of 64 threads, then it is emptied",
    "transports.zenoh.copies.came_by": OURS,
    "transports.zenoh.inbox.samples": "16,384 samples and 16 MiB of each priority, then they are dropped and counted",
    "transports.zenoh.inbox.sent": "one entry at most for each sample that waits",
    "transports.zenoh.lanes._samples": "4,096 samples and 16 MiB of each priority, then they are dropped and counted",
    "transports.zenoh.node._subscribers": OURS,
    "transports._ws.frames._fragments": "MAX_FRAGMENTS, Limits.message",
    "transports._ws.frames._keys": "a fixed size",
    "transports._ws.server._head": "the head of a request",
    "transports._memory_transport._inbox": "HIGH_BYTES or HIGH_FRAMES, then the outbox of the link; charged while paused",
    "_tunnel.frame_channel._arrived": "what one chunk holds, for the time in which it is looked at",
    "_tunnel.frame_channel._queue": (
        "the outbox of the inner link: it is told to pause with the first; cut after Limits.write_timeout"
    ),
    "_util.priority_queue._levels": (
        "what its owner lets in: Limits.outbox and outbox_bytes, or Limits.waiting and waiting_bytes; charged"
    ),
    "_core.workers._idle": "64 workers",
    "_core.workers._ready": "Limits.total_running, and one for each `on` handler",
}


def sources() -> Iterator[Path]:
    yield from (PACKAGE / f"{module}.py" for module in MODULES)
    yield from sorted((PACKAGE / "transports").glob("*.py"))
    for folder in FOLDERS:
        yield from sorted((PACKAGE / folder).rglob("*.py"))


def grows(value: ast.AST | None) -> bool:
    """Whether an expression is, or may be, a new container that is empty."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        if value.func.id == "field":  # of an attrs class
            made = [keyword.value for keyword in value.keywords if keyword.arg == "factory"]
            return any(isinstance(one, ast.Name) and one.id in GROWING for one in made)
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
            if isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "field":
                yield from (f"{module}.{ast.unparse(target)}" for target in targets)


def test_everything_that_can_grow_has_a_bound() -> None:
    found = {name for path in sources() for name in containers(path)}
    assert found - BOUNDS.keys() == set(), "what bounds these? Then a line in BOUNDS"
    assert BOUNDS.keys() - found == set(), "these are gone: their lines too"
