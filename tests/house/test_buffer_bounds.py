"""No buffer without a bound: everything in the core that can grow is listed here, with what bounds it.

A container that is new makes the test fail: give it a bound, and its place in the table. What is charged is also within
`Limits.total_bytes`.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

from .sources import PACKAGE, tree_of

FOLDERS = """
_core bindings bridges broker capture/record cluster
protocols/csb protocols/nats protocols/ubre protocols/up protocols/uprotocol transports/_stream transports/_ws
transports/asgi transports/zenoh
""".split()
MODULES = """
_util/broadcast _util/pattern_index _util/priority_queue prometheus protocols/_shared protocols/_uprotocol running
""".split()
GROWING = {"Counter", "Memo", "OrderedDict", "PriorityQueue", "bytearray", "defaultdict", "deque", "dict", "list", "set"}

OURS = "grows with what this application does, not with what peers send"
BOUNDS = {
    OURS: """
        bus.dialer._checked_headers bus.lifecycle._guests bus.lifecycle._holders bus.links.gates
        bus.links.of_lifespan bus.links.opened running._entrances bus.links.extensions cluster.durable.storage._readers
        cluster.durable.storage._taken cluster.durable.storage.engines
        runtime.executor._proven runtime.executor.middleware runtime.injection.makers
        runtime.injection.needs runtime.runtime._detached runtime.runtime.overriding
        runtime.services.outgoing runtime.services.overrides
        runtime.services.recorders handlers.handler._makers handlers.lookup.by_uri
        handlers.lookup.listeners handlers.lookup.handlers handlers.lookup.publications handlers.lookup.routes
        handlers.lookup.subscribers link.link.confirmations link.receiver._taps peer.subscription._room
        peer.subscription._readers pubsub.announcer._grouped pubsub.announcer._interests pubsub.handler_subscription.members
        pubsub.recipients._patterns pubsub.recipients.indices
        pubsub.pubsub._groups pubsub.pubsub._handler_queues pubsub.pubsub._subscriptions rpc.channel._line
        rpc.channel._readers broker._broker._listening cluster.engine._running
        cluster.durable.readers._handlers cluster.durable.readers._of_subscriptions
        cluster.durable.readers._readers cluster.workers._slots cluster.workers._sockets cluster.workers._why_not
        cluster.workers.urls prometheus._tallies protocols.csb.adapter.chosen
        protocols.nats.cluster.nodes._handled protocols.nats.native._pulled protocols.nats.session._pings
        protocols.nats.connection._sids protocols.nats.connection.by_sid protocols.nats.connection.refused
        protocols.up.samples._wanted protocols.up.names._methods protocols.up.names._names protocols.up.names._topics
        protocols.up.services.methods protocols.up.services.topics transports.zenoh.node.came_by
        transports.zenoh.node._subscribers
    """,
    "1,024 answers for each peer, then it is emptied": "runtime.access.grants",
    "1,024 publications": "cluster.durable.delivery._ends",
    "1,024 requests": "protocols.nats.cluster.dialect._over",
    "1,024 subjects, then it is emptied": """
        bridges._bridge._known protocols.csb.reader._subjects
        protocols._uprotocol._methods protocols._uprotocol._topics protocols.csb.writer._names
        protocols.uprotocol.names.subjects
    """,
    "16,384 samples and 16 MiB of each priority, then they are dropped and counted": "transports.zenoh.node.samples",
    "1,024 addresses, then it is emptied": "protocols.up.names.spellings protocols.uprotocol.events.addresses",
    "1,024 senders, then it is emptied": "protocols.nats.cluster.dialect._sources",
    "2,048 attributes of up to 256 bytes, then it is emptied": "protocols.uprotocol.proto_event._known",
    "2,048 of up to 1,024 bytes, then it is emptied": "protocols.up.codec._known",
    "2,048 of up to Limits.subject, then it is emptied": "protocols.uprotocol.proto_event._texts",
    "256 of up to three times Limits.subject, then it is emptied": "protocols.uprotocol.proto_event._blocks",
    "256 sinks, then it is emptied": "protocols.uprotocol.json_event._recent",
    "256 subjects": "pubsub.pubsub._hinted pubsub.pubsub._stopped",
    "30 questions, one a second": "peer.negotiation._late",
    "4 MiB of patterns, and Cluster.remember": "protocols.nats.cluster.nodes._gone",
    "4 MiB of patterns; of one node 1,024, and 32 KiB": "protocols.nats.cluster.nodes._announced",
    "4,096 nodes": """
        cluster.client_handover.marked cluster.backbone._missing cluster.backbone.nodes_known cluster.client_handover.cut
        protocols.nats.cluster.nodes._nodes
    """,
    "4,096 nodes, and within them Limits.peers": "cluster.client_handover._coming",
    "4,096 of a batch, Limits.outbox_bytes of a peer": "bindings.cloudevents_server.answers",
    "4,096 samples and 16 MiB of each priority, then they are dropped and counted": "transports.zenoh.node._samples",
    "4,096 samples, 16 MiB and 4,096 keys, then they are written and it is given up": """
        transports.zenoh.node._found transports.zenoh.node._line transports.zenoh.node._publishers
        transports.zenoh.node._sought transports.zenoh.node._waiting
    """,
    "4,096 sids": "protocols.nats.connection._leaving",
    "4,096 subjects, then it is emptied": """
        runtime.services.known pubsub.publisher.client_routes pubsub.publisher.routes pubsub.pubsub.queues
        _util.pattern_index._cache protocols.nats.cluster.subjects.asked protocols.nats.cluster.subjects.askers
        protocols.nats.cluster.subjects.handled protocols.nats.cluster.subjects.named
        protocols.nats.cluster.subjects.published protocols.nats.cluster.subjects.read
        protocols.nats.cluster.subjects.written protocols.nats.codec.subjects protocols.nats.operations._names
        protocols.nats.operations._sids protocols.nats.operations._starts
    """,
    "32 of a peer about which authorize is asked at the same time; charged": "peer.authorization_queue._asked",
    "4096 nodes that are not known, until the next look": "protocols.nats.cluster.nodes._greeted",
    "512 blocks of up to 512 bytes, then it is emptied": "protocols.nats.headers.known",
    "64 deadlines, then it is emptied": "protocols.nats.codec.deadlines",
    "64 addresses": "transports._stream.dial._others",
    "64 requests that are posted at the same time": "bindings.cloudevents_client._waiting",
    "64 workers": "runtime.workers._idle",
    "65,536 of each peer, and Limits.pending": "protocols.csb.session.pending",
    "65,536 publications, for the seconds in which a link has two connections": "link.server_move._missing",
    "16,384 ids of 64 characters, and as many numbers": "runtime.loop_prevention._numbers runtime.loop_prevention._keys",
    "`queue` messages and Limits.queue_bytes, and what is held back; charged": "peer.subscription._queue",
    "a fixed size": "transports._ws.framing._keys",
    "an event larger than twice Limits.message ends the connection": """
        bindings.jrep_http.requests._data bindings.jrep_http.requests._rest
    """,
    "as _missing, of which it is a part": "link.server_move._early_copies",
    "as many again as may run; what comes beyond is given back": "cluster.durable.reader._waiting",
    "Cluster.running and waiting, and Limits.channels": "protocols.nats.cluster.dialect._held",
    "concurrency= of the handler, queue= of the subscription": "cluster.durable.reader._running",
    "CREDIT items, _TOLERANCE * CREDIT_BYTES and one item more; charged to the peer": "rpc.channel._items",
    "CREDIT_BYTES: each entry counts for 200 bytes at least": "rpc.channel._ahead",
    "each has one client at least that was parked": "cluster.client_handover._claims",
    "HIGH_BYTES or HIGH_FRAMES, then the outbox of the link; charged while paused": "transports.memory._inbox",
    "HIGH_WATER and one frame: then the link keeps what follows in its outbox": """
        bindings.http.client._queue bindings.jrep_http.server._queue
    """,
    "HIGH_WATER, then the link pauses and its outbox fills; charged while paused": """
        transports._stream.asyncio_wire._pending transports._stream.pump_wire._pending
    """,
    "Limits.channels of each direction": "peer.streams.channels",
    "Limits.channels of each peer": "bus.forwarding.tunnels",
    "Limits.handshakes": "bindings.http.server._slow capture.record.proxy._dialled transports._stream.listen._arrivals",
    "Limits.handshakes: the gate of the listener": "bus.acceptor._waiting transports._stream.listen.silent",
    "Limits.outbox": "link.send_queue._shares link.send_queue.droppable",
    "Limits.outbox and outbox_bytes": "link.send_queue._entries link.send_queue._requests",
    "Limits.outbox and outbox_bytes; charged": "cluster.client_handover._waiting",
    "Limits.payload: Intake.room; a client reads all before it asks again": "bindings.jrep_http.payloads._unread",
    "Limits.peers": """
        bus.acceptor.links link.multiplexer._expires link.multiplexer._offences link.multiplexer._pending
        link.multiplexer._unasked link.multiplexer.peers broker._broker.ends broker.registry.held
        broker.registry.servers broker.registry._slow cluster.client_handover._clients
        cluster.client_handover._names cluster.client_handover._newcomers
        cluster.client_handover._parked cluster.client_handover._secrets
    """,
    "Limits.peers and handshakes: the gate of the listener; one that is silent ends": "bindings.jrep_http.server._sessions",
    "Limits.peers and Limits.handshakes of each gate": "runtime.access.networks",
    "Limits.peers, and MOST_RESTING numbers": "broker.registry.clients",
    "Limits.peers, and the links that this bus opened": "runtime.runtime.links",
    "Limits.peers, then the oldest is forgotten": "protocols.csb.session._sent_away",
    "Limits.peers: the crowd sends the others away at once": "protocols.csb.session._numbered protocols.csb.session._parties",
    "Limits.peers: the gate of the listener; one that is silent ends": "bindings.cloudevents_server._connections",
    "Limits.pending": """
        peer.peer_core.pending protocols.nats.cluster.dialect._asked protocols.nats.native._publications
        protocols.nats.native._waiting protocols._uprotocol._asked
    """,
    "Limits.pending, twice Limits.channels": "rpc.loopback.calls",
    "Limits.queue_bytes, then the connection ends": "protocols.csb.session._early",
    "Limits.queue_bytes; charged": "peer.subscription._overflow",
    "Limits.running": "peer.inbound_calls.answers",
    "Limits.running + waiting": "peer.inbound_calls.calls",
    "Limits.running + waiting: more are answered at once": "bindings.cloudevents_server._posted",
    "Limits.running and Limits.waiting": "protocols.nats.native._owed",
    "Limits.running messages of a stranger, a sixteenth of Limits.queue_bytes; charged": "link.multiplexer.messages",
    "Limits.running, waiting and channels of each peer": "bus.forwarding.calls",
    "Limits.running; charged": "peer.inbound_calls.bodies",
    "Limits.subscriptions and one user, of each client": "pubsub.announcer._behind",
    "Limits.subscriptions of each peer, 64 tokens; charged to the peer beyond eight": """
        _util.pattern_index.patterns _util.pattern_index.tails _util.pattern_index.whole
    """,
    "Limits.subscriptions of each peer; charged to the peer": "_util.pattern_index._exact",
    "Limits.subscriptions; charged to the peer": "peer.remote_subscriptions.patterns",
    "Limits.total_running, and concurrency= of `on` handlers: each is a call that runs": "runtime.workers._addresses",
    "Limits.total_running, and one for each `on` handler": "runtime.workers._ready",
    "Limits.total_running: each is a handler that runs": "runtime.threads._waits",
    "Limits.waiting messages, Limits.waiting_bytes; charged to the peer": """
        peer.authorization_queue._waiting peer.inbound_calls.waiting
    """,
    "Limits.waiting of each peer, or Cluster.waiting; charged. Of the bus itself Limits.pending": "runtime.workers._owners",
    "Limits.waiting_bytes: a hello that does not fit is answered at once; charged": "peer.negotiation._deferred",
    "made once": "protocols.ubre.json_format._by_letter protocols.ubre.json_format._by_verb",
    "MAX_FRAGMENTS parts of one message, as large as it may be": "bindings.http.uvicorn.frames",
    "MAX_FRAGMENTS, Limits.message": "transports._ws.framing._fragments",
    "MOST_RESTING numbers": "broker.registry._resting",
    "nodes that are known, until the next look": "protocols.nats.cluster.nodes.doubted",
    "one chunk: nothing is read before the link is there": "transports._stream.transport._early",
    "one entry at most for each sample that waits": "transports.zenoh.node.sent",
    "one for each channel of the link, for the time of one chunk": "link.link.deferred",
    "one for each link": "pubsub.announcer._told",
    "one for each link that others have opened, and one while something is kept for it still": "runtime.runtime.addresses",
    "one for each link that this bus has opened": "pubsub.recipients.upstream pubsub.recipients.new_servers",
    "one for each peer": """
        bus.links._of_key runtime.loop_prevention._asked runtime.loop_prevention._names runtime.loop_prevention._proofs
        runtime.loop_prevention._told runtime.loop_prevention._identities runtime.loop_prevention.held_out
        runtime.loop_prevention.pending
        runtime.runtime.backlogged link.flow.stalled pubsub.announcer._restoring pubsub.recipients.gets_all
        pubsub.recipients.unconfirmed
    """,
    "one for each peer and link": "runtime.deadline_timer._owners runtime.deadline_timer.watched",
    "one for each request over HTTP that is being answered; charged": "bindings.cloudevents_server._leaving",
    "one frame and 1 MiB behind it: then all is handled at once": "link.receiver._waiting",
    "one frame: its framer refuses more than Limits.message": "transports._stream.framing.parts",
    "one look at a store: its consumers": "cluster.durable.administration.again cluster.durable.administration.durables",
    "one message": "runtime.outgoing_hooks.headers",
    "one of each node that is known": "cluster.client_handover._splices",
    "one of each node that is known, or joins within two seconds": "cluster.client_handover.replies",
    "one operation: a payload over Limits.message is not kept": "protocols.nats.operations._parts",
    "one payload of each request that is being answered: HIGH_WATER and one in all": "bindings.jrep_http.server._leaving",
    "one question a node of those that have something of this one": """
        protocols.nats.cluster.nodes._asked protocols.nats.cluster.nodes._by_token
    """,
    "SETTLED": "protocols.up.session._older protocols.up.session._settled",
    "requests of one turn; what is over the limits is answered at once, and gone": "protocols.nats.cluster.dialect._fresh",
    "running= of the handler": "runtime.workers._taken",
    "16,384 rows, and 64 MiB of large frames; what comes beyond is counted": "capture.record.recorder.rows",
    "those of a batch": "capture.record.writer.ends",
    "one for each row that waits": "capture.record.recorder._gaps",
    "one for each segment that is removed, until the next batch": "capture.record.writer._notes",
    "one frame, as long as the recorder keeps one": """
        capture.record.redact_bytes._values capture.record.redact_bytes.data
    """,
    "the frames that one turn of a link sends": "capture.record.taps._asked",
    "the options of a URL": "capture.record.recorder.metadata capture.record.taps._options",
    "twice Limits.peers": "capture.record.proxy._sides",
    "the codes": "prometheus.outcomes",
    "the functions that one handler asks for": "runtime.injection._entered runtime.injection._made",
    "the head of a request, and one chunk: no more is read before the client is admitted": "transports._stream.listen.unread",
    "the head of an answer, and one chunk": "transports._ws.client.rest",
    "the last sample of 64 threads, then it is emptied": "transports.zenoh.node._latest",
    "the outbox of the inner link: it is told to pause with the first; cut after Limits.write_timeout": """
        tunnel._queue
    """,
    "the reasons that there are": "broker.events.frames_dropped_total",
    "the routes of an endpoint": "bindings.http.server._endings bindings.http.server._exact",
    "the verbs": "runtime.access._told",
    "those of `_parties` with ids that rest": "protocols.csb.session._resting",
    "those of `pending` that nobody waits for": "protocols.csb.session.resting",
    "two": "broker._broker._gates",
    "two buses": "bridges._bridge._entered",
    "two for each peer and link, and 64": "runtime.deadline_timer._due",
    "one message of a WebSocket, or four of a body, until its client is admitted": "transports.asgi._endpoint.early",
    "two for each session, for the time of a handshake": "bindings.jrep_http.server._claiming",
    "33 questions to `authorize` at a time, and one for each time that a handler is told": "peer.peer_core._scopes",
    "Up(per_authority=) of each authority, and within Limits.waiting and running": """
        protocols.up.session._counts protocols.up.session._under_way
    """,
    "what a handler sets; Limits.headers when it is sent": "runtime.context.answer_headers",
    "what is not read makes the link pause: HIGH_WATER, then the outbox": "transports.asgi._transport._pending",
    "what its owner lets in: Limits.outbox and outbox_bytes, or Limits.waiting and waiting_bytes; charged": """
        _util.priority_queue._levels
    """,
    "what one chunk holds, for the time in which it is looked at": "tunnel._arrived",
    "the targets of one publication": """
        pubsub.publisher.catching_up pubsub.publisher.failed pubsub.publisher.peers pubsub.publisher.queues
        pubsub.publisher.unconfirmed pubsub.publisher.undecided
    """,
    "what one chunk holds, until the turn after it is over": "protocols.nats.cluster.dialect._turns",
    "what one frame holds, or one chunk in a handshake: taken after each": """
        link.server_move._early protocols.nats.connection.events protocols._uprotocol._output
    """,
    "what one frame is answered with, or one message makes: taken after each": "protocols.nats.connection.frames",
}
"""What bounds which containers, each as ``module.attribute``, modules of the core without its name."""


def sources() -> Iterator[Path]:
    yield from (PACKAGE / f"{module}.py" for module in MODULES)
    yield from sorted((PACKAGE / "transports").glob("*.py"))
    for folder in FOLDERS:
        yield from sorted((PACKAGE / folder).rglob("*.py"))


def grows(value: ast.AST | None) -> bool:
    """Whether an expression is, or may be, a new container that is empty."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
        if value.func.id == "field":  # of an attrs class, or of a Struct
            made = [keyword.value for keyword in value.keywords if keyword.arg in ("factory", "default_factory")]
            made = [one.body if isinstance(one, ast.Lambda) else ast.Call(one, [], []) for one in made]
            return any(map(grows, made))
        return value.func.id in GROWING and not any(keyword.arg == "maxlen" for keyword in value.keywords)
    if isinstance(value, ast.IfExp):
        return grows(value.body) or grows(value.orelse)
    if isinstance(value, ast.BoolOp):
        return any(map(grows, value.values))
    return (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, (ast.List, ast.Set)) and not value.elts)


def containers(path: Path) -> Iterator[str]:
    """All attributes that are set to one, as ``module.attribute``, modules of the core without its name."""
    module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removeprefix("_core.")
    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and grows(node.value):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (f"{module}.{target.attr}" for target in targets if isinstance(target, ast.Attribute))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "object.__setattr__" and grows(node.args[2]):
            yield f"{module}.{ast.literal_eval(node.args[1])}"
        if isinstance(node, ast.ClassDef):
            fields = [field for field in node.body if isinstance(field, ast.AnnAssign) and grows(field.value)]
            yield from (f"{module}.{ast.unparse(field.target)}" for field in fields)


def test_everything_that_can_grow_has_a_bound() -> None:
    found = {name for path in sources() for name in containers(path)}
    listed = [name for names in BOUNDS.values() for name in names.split()]
    assert len(listed) == len({*listed}), "one of them is there twice"
    assert found - {*listed} == set(), "what bounds these? Then a place in BOUNDS"
    assert {*listed} - found == set(), "these are gone: from BOUNDS, too"
