"""Stand-ins for Errai's servers as an HTTP client sees them, each based on observations of the real one.

They run in a thread, so that the client under test may run in any event loop. A proxy between a servlet and its client is
here, too.
"""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
import uvicorn

JSON = [(b"content-type", b"application/json")]
EVENTS = [(b"content-type", b"text/event-stream")]
ANSWERS = (":RespondTo:RPC", ":Errors:RPC")
WAIT = 45.0


class Queue:
    """Of a session: what waits until some request fetches it, or what goes over a WebSocket."""

    def __init__(self) -> None:
        self.subjects: set[str] = set()
        self.waiting: list[bytes] = []
        self.changed = asyncio.Event()
        self.taken = asyncio.Event()
        self.listening = 0
        """Streams that wait for something."""
        self.stopped = False
        self.socket: Callable[[bytes], None] | None = None

    def offer(self, message: dict[str, Any]) -> None:
        document = json.dumps(message).encode()
        if self.socket is not None:
            self.socket(b"[%b]" % document)
            return
        self.waiting.append(document)
        self.changed.set()

    def stop(self) -> None:
        """A byte 0xFF wakes who waits."""
        self.stopped = True
        self.waiting.append(b"\xff")
        self.changed.set()

    async def poll(self, seconds: float) -> bytes:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not self.waiting and not self.stopped:
                    self.changed.clear()
                    await self.changed.wait()
        waiting, self.waiting = self.waiting, []
        self.taken.set()
        return b"[%b]" % b",".join(waiting)


class Servlet:
    """What all have in common: sessions known by the client's id, and the bus behind them."""

    flags = "LongPolling"
    json = JSON

    def __init__(self) -> None:
        self.queues: dict[tuple[str, str], Queue] = {}
        self.log: list[tuple[str, dict[str, Any]]] = []
        """All messages with the way that they came: ``POST`` or ``socket``."""
        self.requests: list[tuple[str, dict[str, str]]] = []
        """Method and query of all requests."""
        self.held: tuple[str, ...] = ()
        """Methods of requests that are read, and neither done nor answered."""
        self.released = asyncio.Event()
        self.status = 200
        self.loop: asyncio.AbstractEventLoop | None = None

    # -- for tests, from any thread

    @property
    def streams(self) -> int:
        return sum(query.get("sse") == "1" for _, query in self.requests)

    def values(self, subject: str) -> list[Any]:
        return [message.get("Value") for _, message in self.log if message.get("ToSubject") == subject]

    def publish(self, subject: str, value: Any) -> None:
        assert self.loop is not None
        self.loop.call_soon_threadsafe(self.deliver, {"ToSubject": subject, "Value": value})

    def release(self) -> None:
        """Do what was held, and hold nothing more."""
        self.held = ()
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self.released.set)

    def subscribed(self, subject: str) -> bool:
        return any(subject in queue.subjects for queue in self.queues.values())

    def end(self) -> None:
        """Whoever waits, waits no more."""
        self.release()
        for queue in self.queues.values():
            queue.stop()

    # -- the bus

    def deliver(self, message: dict[str, Any]) -> None:
        """To all who have advertised the subject; also to who sent it."""
        for queue in self.queues.values():
            if message["ToSubject"] in queue.subjects:
                queue.offer(message)

    def answer(self, queue: Queue, subject: str, **parts: Any) -> None:
        """What answers go to comes without a subscription."""
        if subject.endswith(ANSWERS) or subject in queue.subjects:
            queue.offer({"ToSubject": subject, **parts})

    def store(self, key: tuple[str, str], body: bytes, way: str) -> None:
        messages = json.loads(body) if body.strip() else []
        for message in messages if isinstance(messages, list) else [messages]:
            self.log.append((way, message))
            subject = message["ToSubject"]
            if subject == "ServerBus":
                self.command(key, message)
                continue
            queue = self.queues[key]
            if subject == "ServerEchoService":
                self.answer(queue, message["ReplyTo"])
            elif subject == "EchoService":
                self.answer(queue, message["ReplyTo"], Value=message.get("Value"))
            elif subject == "LateService" and self.loop is not None:
                self.loop.call_later(0.05, partial(self.answer, queue, message["ReplyTo"], Value="late"))
            self.deliver(message)

    def command(self, key: tuple[str, str], message: dict[str, Any]) -> None:
        match message["CommandType"]:
            case "Associate":
                queue = self.queues[key] = Queue()
                queue.subjects.update(message["RemoteServices"].split(","))
                own = {"RemoteServices": "ServerBus,ServerEchoService,EchoService,LateService", "ConnectionSessionKey": key[1]}
                finished = {"ToSubject": "ClientBus", "CommandType": "FinishAssociation", "CapabilitiesFlags": self.flags}
                queue.offer(finished | own | self.offers())
            case "RemoteSubscribe":
                self.queues[key].subjects.add(message["Subject"])
            case "RemoteUnsubscribe":
                self.queues[key].subjects.discard(message["Subject"])
            case "Disconnect":
                self.queues.pop(key).stop()

    def offers(self) -> dict[str, str]:
        return {}

    # -- HTTP

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.loop = asyncio.get_running_loop()
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode()).items()}
        self.requests.append((scope["method"], query))
        client = self.client_of(headers, query)
        if client is None:
            await self.respond(send, b"no client id", status=500, headers=[(b"content-type", b"text/html")])
            return
        body = b""
        while True:
            event = await receive()
            body += event.get("body", b"")
            if not event.get("more_body"):
                break
        while scope["method"] in self.held:
            self.released.clear()
            await self.released.wait()
        if self.status != 200:
            await self.respond(send, b"<html>not now</html>", status=self.status, headers=[(b"content-type", b"text/html")])
            return
        await self.serve(scope["method"], ("s", client), query, body, send)

    def client_of(self, headers: dict[str, str], query: dict[str, str]) -> str | None:
        return query.get("clientId")

    async def serve(self, method: str, key: tuple[str, str], query: dict[str, str], body: bytes, send: Any) -> None:
        begins = b'"Associate"' in body
        if key not in self.queues and not begins:
            await self.expired(send)
            return
        self.store(key, body, "POST")
        await self.fetch(key, query, send)

    async def expired(self, send: Any) -> None:
        await self.respond(send, b'[{"ToSubject":"ClientBus","CommandType":"SessionExpired"}]')

    async def fetch(self, key: tuple[str, str], query: dict[str, str], send: Any) -> None:
        queue = self.queues.get(key)
        if queue is None:  # it has just gone
            await self.respond(send, b"")
        else:
            await self.respond(send, await queue.poll(WAIT if query.get("wait") == "1" else 0))

    async def respond(self, send: Any, body: bytes, status: int = 200, headers: Any = None) -> None:
        fields = [*(self.json if headers is None else headers), (b"set-cookie", b"JSESSIONID=s")]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body})


class DefaultBlockingServlet(Servlet):
    """Errai 4's usual one: of its events it sends nothing, not even the head, before it has something to say, or after 45 s.

    While a stream waits, a post may take along what it has caused, or leave it to the stream: the two race.

    Args:
        post_wins: Who of them gets it.
    """

    flags = "LongPolling,SSE"

    def __init__(self, post_wins: bool = True) -> None:
        super().__init__()
        self.post_wins = post_wins
        self.begun = False
        """Whether a stream has said something."""

    async def fetch(self, key: tuple[str, str], query: dict[str, str], send: Any) -> None:
        queue = self.queues.get(key)
        if queue is None or query.get("sse") != "1":
            if queue is not None and not self.post_wins and queue.listening and queue.waiting:
                queue.taken.clear()
                await queue.taken.wait()
            await super().fetch(key, query, send)
            return
        begun = False
        while not queue.stopped:
            queue.listening += 1
            try:
                payload = await queue.poll(WAIT)
            finally:
                queue.listening -= 1
            if not begun:
                await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
                begun = self.begun = True
            block = b"retry: 500\nevent: bus-traffic\n\ndata: %b\n\n" % payload
            await send({"type": "http.response.body", "body": block, "more_body": True})
        if not begun:
            await send({"type": "http.response.start", "status": 200, "headers": EVENTS})
        await send({"type": "http.response.body", "body": b""})


class PollingServlet(Servlet):
    """Offers no events, and does not say that its answers are JSON. A poll that has waited gets ``[][{...}]``, one message.

    This is what Errai's asynchronous servlet and the one for Jetty's continuations do.
    """

    json: Any = []

    async def fetch(self, key: tuple[str, str], query: dict[str, str], send: Any) -> None:
        queue = self.queues.get(key)
        if queue is None or query.get("wait") != "1":
            await super().fetch(key, query, send)
            return
        before = b"" if queue.waiting else b"[]"
        while not queue.waiting:
            queue.changed.clear()
            await queue.changed.wait()
        await self.respond(send, before + b"[%b]" % queue.waiting.pop(0))


class Jsr356Servlet(DefaultBlockingServlet):
    """Beside the blocking one, the WebSocket endpoint as Tomcat has it: text of more than 8,192 characters ends it."""

    flags = "LongPolling,WebSockets,SSE"
    most = 8192

    def __init__(self) -> None:
        super().__init__()
        self.url = ""
        self.upgrades = 0
        self.largest = 0
        self.verified = False

    def offers(self) -> dict[str, str]:
        return {"WebSocketURL": self.url, "WebSocketToken": "93332e80"}

    def command(self, key: tuple[str, str], message: dict[str, Any]) -> None:
        if message["CommandType"] == "WebsocketChannelVerify":
            self.verified = True
            self.queues[key].offer({"ToSubject": "ClientBus", "CommandType": "WebsocketChannelOpen", "WebSocketToken": "next"})
        else:
            super().command(key, message)

    async def fetch(self, key: tuple[str, str], query: dict[str, str], send: Any) -> None:
        queue = self.queues.get(key)
        if queue is not None and queue.socket is not None:  # everything goes there
            await self.respond(send, b"")
        else:
            await super().fetch(key, query, send)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await self.socket(receive, send)
        else:
            await super().__call__(scope, receive, send)

    async def socket(self, receive: Any, send: Any) -> None:
        self.upgrades += 1
        await receive()
        await send({"type": "websocket.accept"})
        outgoing: asyncio.Queue[bytes] = asyncio.Queue()
        writer = asyncio.create_task(self.write_all(outgoing, send))
        key: tuple[str, str] | None = None
        try:
            while (event := await receive())["type"] == "websocket.receive":
                text = event["text"]
                self.largest = max(self.largest, len(text))
                if self.most and len(text) > self.most:
                    await send({"type": "websocket.close", "code": 1009, "reason": "the buffer is too small"})
                    return
                document = json.loads(text)
                if not isinstance(document, dict):
                    assert key is not None
                    self.store(key, text.encode(), "socket")
                elif "ToSubject" not in document:
                    key = self.claimed(document, key, outgoing)
        finally:
            writer.cancel()
            if key is not None and key in self.queues:
                self.queues[key].socket = None

    def claimed(self, claim: dict[str, Any], key: tuple[str, str] | None, outgoing: asyncio.Queue[bytes]) -> tuple[str, str]:
        mine = ("s", claim["ConnectionSessionKey"])
        word = {"ToSubject": "ClientBus", "CommandType": "WebsocketChannelVerify", "WebSocketToken": "54638e6c"}
        if key is not None:
            assert self.verified
            self.queues[mine].socket = outgoing.put_nowait
            word = {"ToSubject": "ClientBus", "CommandType": "WebsocketChannelOpen"}
        outgoing.put_nowait(json.dumps([word]).encode())
        return mine

    @staticmethod
    async def write_all(outgoing: asyncio.Queue[bytes], send: Any) -> None:
        while True:
            await send({"type": "websocket.send", "text": (await outgoing.get()).decode()})


class LegacyBlockingServlet(Servlet):
    """Errai until 2.3: the id is in a header, who polls says GET, and answers come only to subjects that were announced."""

    def client_of(self, headers: dict[str, str], query: dict[str, str]) -> str | None:
        return headers.get("remotequeueid")

    def answer(self, queue: Queue, subject: str, **parts: Any) -> None:
        if subject in queue.subjects:
            queue.offer({"ToSubject": subject, **parts})

    async def serve(self, method: str, key: tuple[str, str], query: dict[str, str], body: bytes, send: Any) -> None:
        if key not in self.queues and b'"ConnectToQueue"' not in body:
            await self.expired(send)
            return
        self.store(key, body, method)
        queue = self.queues.get(key)
        await self.respond(send, b"" if queue is None else await queue.poll(WAIT if method == "GET" else 0))

    def command(self, key: tuple[str, str], message: dict[str, Any]) -> None:
        match message["CommandType"]:
            case "ConnectToQueue":
                queue = self.queues[key] = Queue()
                subjects = {"^EncodedType": "java.util.HashSet", "^ObjectID": "1", "^Value": ["ServerBus", "EchoService"]}
                for command, parts in (
                    ("RemoteSubscribe", {"SubjectsList": subjects}),
                    ("CapabilitiesNotice", {"CapabilitiesFlags": "LongPollAvailable"}),
                    ("FinishStateSync", {"ConnectionSessionKey": key[1]}),
                ):
                    queue.offer({"ToSubject": "ClientBus", "CommandType": command, **parts})
            case "RemoteSubscribe":
                names = message.get("SubjectsList", {"^Value": [message.get("Subject")]})["^Value"]
                self.queues[key].subjects.update(names)
            case "FinishStateSync":
                pass
            case _:
                super().command(key, message)


class CollectingProxy:
    """Between a servlet and its client: a stream of events is passed on when it is over, and not before."""

    def __init__(self, servlet: Servlet) -> None:
        self.servlet = servlet

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        collects = b"sse=1" in scope["query_string"]
        held: list[Any] = []

        async def pass_on(event: Any) -> None:
            held.append(event)
            if not collects or (event["type"] == "http.response.body" and not event.get("more_body")):
                while held:
                    await send(held.pop(0))

        await self.servlet(scope, receive, pass_on)


@asynccontextmanager
async def serving(servlet: Any, application: Any = None) -> AsyncIterator[str]:
    """The address of a servlet, without the protocol."""
    up = threading.Event()
    options: Any = {"log_level": "critical", "lifespan": "off", "timeout_graceful_shutdown": 1}
    # Older versions of uvicorn prefer a module of websockets that warns.
    config = uvicorn.Config(application or servlet, port=0, ws="websockets-sansio", **options)
    server = Up(config, up)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        await anyio.to_thread.run_sync(up.wait)
        port = server.servers[0].sockets[0].getsockname()[1]
        if isinstance(servlet, Jsr356Servlet):
            servlet.url = f"ws://127.0.0.1:{port}/websocket.bus"
        yield f"http://127.0.0.1:{port}/app"
    finally:
        with anyio.CancelScope(shield=True):
            if servlet.loop is not None:
                servlet.loop.call_soon_threadsafe(servlet.end)
            server.should_exit = True
            await anyio.to_thread.run_sync(thread.join)


class Up(uvicorn.Server):
    """Says when it is up, or over."""

    def __init__(self, config: uvicorn.Config, up: threading.Event) -> None:
        super().__init__(config)
        self._up = up

    async def startup(self, sockets: Any = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self._up.set()
