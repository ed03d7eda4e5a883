"""The client side of uProtocol over HTTP. Events are posted, and the response to a request contains its answer (CloudEvents
1.0.2, HTTP binding).

Events that need no answer are posted one at a time. Requests are started in order and wait for their answers in parallel.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final, Self

import anyio
import httpx
from anyio.abc import TaskGroup

from ..errors import Code, ConnectFailed, RemoteProtocolError
from ..message import Kind, Message
from ..plugins import DialOptions
from ..plugins.tools import log_fields, to_the_end
from ..protocols.uprotocol import IdFactory, UProtocol
from ..protocols.uprotocol.adapter import UProtocolCodec
from ..protocols.uprotocol.http import Form, frames_of, http_of
from ..transports.sockets import bounded
from .http.client import ExchangeFailed, HttpClient, answered, shown, turned_away

logger: logging.Logger = logging.getLogger("polybus.transports")

_CANCEL: Final = b"polybus.cancel.v1"
_MOST: Final = 64
_BATCH: Final = 256
_CODES: Final[Mapping[int, Code]] = {
    **dict.fromkeys((400, 415), Code.INVALID_ARGUMENT),
    **dict.fromkeys((404, 405), Code.UNIMPLEMENTED),
    **dict.fromkeys((408, 504), Code.DEADLINE_EXCEEDED),
    **dict.fromkeys((413, 429), Code.RESOURCE_EXHAUSTED),
    **{421: Code.PERMISSION_DENIED, 503: Code.UNAVAILABLE},
}
"""Codes for requests that a server, or a proxy in front of the server, did not deliver (up-l2 dispatchers)."""


class EventsClient(HttpClient):
    def __init__(self, url: str, tls: ssl.SSLContext | None, options: DialOptions) -> None:
        super().__init__(url, tls, options, {}, [self._post_all])
        self._url = url
        given = options.adapter
        self._adapter: UProtocol = given if isinstance(given, UProtocol) else UProtocol()
        self._limits = options.host.limits
        self._codec: UProtocolCodec = UProtocol.codec(self._adapter, self._limits)
        self._form = Form(self._adapter.content, self._adapter.format)
        self._alone = Form("structured" if self._form.mode == "batch" else self._form.mode, self._form.format)
        self._ids = IdFactory(self._adapter.clock)
        self._waiting: dict[str, anyio.CancelScope] = {}
        self._room = anyio.Semaphore(_MOST)
        self._warned = False

    @classmethod
    async def opened(cls, url: str, tls: ssl.SSLContext | None, options: DialOptions) -> Self:
        """Connect to a server that is up and admits the client, as far as this can be checked without sending an event."""
        made = cls(url, tls, options)
        try:
            doing = "asking the server whether it is up (Limits.connect_timeout)"
            with bounded(url, options.host.limits.connect_timeout, doing):
                status, _, body = await made.ask("OPTIONS", url)
            away = turned_away(status, body)
            if away is not None and away.error is not None:
                raise away.error
            # Third-party servers may not support OPTIONS, but any answer below 500 shows that they are up, and 501 too.
            if status >= 500 and status != 501:
                raise answered(status, body)
        except BaseException as error:
            await to_the_end(made.drop)
            if isinstance(error, ExchangeFailed):
                why = error.why
                raise ConnectFailed(url, why.reason, errno=why.errno, status=why.status) from error
            raise
        return made

    def send(self, frame: bytes) -> None:
        if not self._cancelled(frame):  # not queued, because the queue may be full
            super().send(frame)

    def _cancelled(self, frame: bytes) -> bool:
        """Cancel a waiting request if the frame is a cancel. The server notices that the request's connection is closed."""
        if _CANCEL not in frame:
            return False
        attributes, _, _ = self._codec.reader.parts(frame)
        scope = self._waiting.get(attributes.get("reqid") or "")
        if attributes["type"] != _CANCEL.decode() or scope is None:
            return False
        scope.cancel()
        return True

    # -- the requests

    async def _post_all(self) -> None:
        async with anyio.create_task_group() as group:
            await self.guarded(partial(self._post_each, group))  # inside the task group, which would wrap errors
            group.cancel_scope.cancel()  # pending requests fail, but a bus that shuts down drains first
        self._scope.cancel()

    async def _post_each(self, group: TaskGroup) -> None:
        while await self.something():
            frame = self._queue.popleft()
            attributes, _, _ = self._codec.reader.parts(frame)
            if attributes["type"] == "req.v1":
                await self._begin(group, frame, attributes)
            elif not self._cancelled(frame):
                await self._tell([frame, *self._more()])
            self.taken(self._size - sum(map(len, self._queue)))

    def _more(self) -> list[bytes]:
        found: list[bytes] = []
        if self._form.mode == "batch":
            room = self.max_frame // 2
            while self._queue and len(found) < _BATCH and (room := room - len(self._queue[0])) > 0:
                attributes, _, _ = self._codec.reader.parts(self._queue[0])
                if attributes["type"] == "req.v1":
                    break
                found.append(self._queue.popleft())
        return found

    async def _tell(self, frames: Sequence[bytes]) -> None:
        status, _, body = await self._post(frames, self._form, None)
        if status >= 500:
            raise answered(status, body)
        if status >= 300 and not self._warned:
            self._warned = True
            fields = log_fields(address=self.address, protocol="uprotocol")
            logger.warning("%s: an event was refused with status %d: %s", self.address, status, shown(body), extra=fields)

    async def _begin(self, group: TaskGroup, frame: bytes, attributes: Mapping[str, Any]) -> None:
        await self._room.acquire()
        scope = self._waiting[attributes["id"]] = anyio.CancelScope()
        group.start_soon(self.guarded, partial(self._ask_one, scope, frame, attributes))

    async def _ask_one(self, scope: anyio.CancelScope, frame: bytes, attributes: Mapping[str, Any]) -> None:
        try:
            with scope:
                self.deliver(await self._answered(frame, attributes))
        finally:
            del self._waiting[attributes["id"]]
            self._room.release()

    async def _answered(self, frame: bytes, asked: Mapping[str, Any]) -> list[bytes]:
        try:
            status, headers, body = await self._post([frame], self._alone, asked["ttl"] / 1000 + self._limits.close_timeout)
        except TimeoutError:
            return [self._undelivered(asked, Code.DEADLINE_EXCEEDED, f"{self.address} did not answer in time")]
        if _has_event(headers):
            try:
                frames = frames_of({name.lower(): v for name, v in headers.items()}, body, self._adapter, self._limits)
                if any(self._codec.reader.parts(frame)[0].get("reqid") == asked["id"] for frame in frames):
                    return frames
            except (RemoteProtocolError, ValueError, RecursionError) as error:
                return [self._undelivered(asked, Code.INTERNAL, f"the server's answer is not an event: {error}")]
            # Without an error, the caller would wait until the deadline.
            return [self._undelivered(asked, Code.INTERNAL, "the server's answer has no event for this request")]
        if status < 300:
            return [self._undelivered(asked, Code.UNAVAILABLE, f"the server answered {status} without an event")]
        code = _CODES.get(status, Code.UNKNOWN if status < 500 else Code.INTERNAL)
        reason = "too_large" if status == 413 else None
        return [self._undelivered(asked, code, f"the server answered {status}: {shown(body)}", reason)]

    def _undelivered(self, asked: Mapping[str, Any], code: Code, text: str, reason: str | None = None) -> bytes:
        facts = {name: asked[name] for name in ("priority", "ttl") if name in asked}
        facts |= {"id": self._ids.next(), "source": asked["sink"], "sink": asked["source"], "commstatus": int(code)}
        facts |= {"text": text, "reason": reason}
        return self._codec.encode([Message(Kind.ERROR, "", asked["id"], code=code, attributes=facts)])

    async def _post(self, frames: Sequence[bytes], form: Form, patience: float | None) -> tuple[int, httpx.Headers, bytes]:
        content = http_of(frames, self._adapter, form, self._limits)
        timeout = self._http.timeout if patience is None else httpx.Timeout(self._http.timeout.write, read=None)
        with anyio.fail_after(patience):
            status, headers, body = await self.ask(
                "POST", self._url, headers=dict(content.headers), content=content.body, timeout=timeout
            )
        away = turned_away(status, body)
        if away is not None and not _has_event(headers):
            raise ExchangeFailed(away)
        return status, headers, body


def _has_event(headers: httpx.Headers) -> bool:
    return "ce-specversion" in headers or headers.get("content-type", "").startswith("application/cloudevents")
