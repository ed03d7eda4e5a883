"""The steps of `polybus doctor`, from the name of a host to the answer to a request."""

from __future__ import annotations

import socket
import ssl
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from statistics import median
from time import perf_counter
from typing import Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import anyio
import anyio.abc
from anyio.streams.tls import TLSAttribute, TLSStream
from attrs import define

from .. import Bus, BusError, ConnectFailed, DeadlineExceeded, Disconnected, Limits, NoHandler, Peer, RequestError, connect
from .._util.certificates import SOON
from .._validation import counted, shown
from ..errors import RemoteProtocolError
from ..plugins import Connector, DialOptions, ProtocolAdapter, ProtocolFeatures, Transport
from ..plugins.registry import resolve_url
from ..transports._stream.wire import plain_reason
from . import hints
from .problems import for_shell

Outcome: TypeAlias = Literal["ok", "doubtful", "failed", "not reached"]

NOBODY = "polybus.doctor"
"""A subject that nobody handles: that this is said shows that requests go there and back."""
_OF_STREAMS = (anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.EndOfStream)
_OF_THE_NETWORK = (BusError, OSError, EOFError, ValueError, *_OF_STREAMS)
_ROUNDS = 5
_PORTS = {"ws": 80, "http": 80, "wss": 443, "https": 443}


@define
class DoctorStep:
    name: str
    outcome: Outcome = "not reached"
    seconds: float | None = None
    detail: str = ""
    remedy: str = ""


class StepFailed(Exception):
    """A step has failed, and what follows cannot be tried."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy


class StepDoubtful(StepFailed):
    """A step shows what will do for many, and not for all: the examination goes on."""


@define(slots=False)
class Examination:
    """One look at a server. `steps` is filled by `run`, which raises nothing that the server could cause."""

    url: str
    subject: str | int = ""
    body: Any = None
    timeout: float = 5.0
    headers: Mapping[str, str] | None = None
    tls: ssl.SSLContext | None = None

    def __attrs_post_init__(self) -> None:
        adapter, transport, address = resolve_url(self.url)
        self._adapter = self.adapted(adapter)
        self._connector = transport.connector(address)
        self._parts = urlsplit(address)
        self._host = self._parts.hostname or ""
        self._port = self._parts.port or _PORTS.get(self._parts.scheme, 0)
        self._plan = self.planned()
        self.steps: list[DoctorStep] = [DoctorStep(name) for name in self._plan]

    @property
    def failed(self) -> DoctorStep | None:
        return next((step for step in self.steps if step.outcome == "failed"), None)

    @property
    def doubts(self) -> list[DoctorStep]:
        """Steps that show what will not do for everybody."""
        return [step for step in self.steps if step.outcome == "doubtful"]

    def adapted(self, adapter: ProtocolAdapter) -> ProtocolAdapter:
        """The protocol, with options for this examination."""
        return adapter

    def planned(self) -> dict[str, Callable[[AsyncExitStack], Awaitable[str]]]:
        scheme = self._parts.scheme
        plan: dict[str, Callable[[AsyncExitStack], Awaitable[str]]] = {}
        if self._host and scheme in ("tcp", "tls", "ws", "wss", "http", "https"):
            plan |= {"resolve": self._resolve, "connect": self._connect}
            if scheme in ("tls", "wss", "https"):
                plan["tls"] = self._shake_hands
        elif scheme == "unix":
            plan["socket file"] = self._find_socket
        opened = "upgrade" if scheme in ("ws", "wss") else "open"
        return plan | {opened: self._open, "handshake": self._handshake, "peer": self._meet, "request": self._ask}

    async def run(self) -> None:
        """Take the steps, as far as they hold."""
        async with anyio.create_task_group() as self._group, AsyncExitStack() as stack:
            stack.callback(self._group.cancel_scope.cancel)
            for step, take in zip(self.steps, self._plan.values(), strict=True):
                began = perf_counter()
                try:
                    with anyio.fail_after(self.timeout + 1):  # the limits within are to fire first: they say more
                        step.detail = await take(stack)
                    step.outcome = "ok"
                except Exception as error:
                    step.outcome = "doubtful" if isinstance(error, StepDoubtful) else "failed"
                    step.detail, step.remedy = self._explained(error, step.name)
                step.seconds = perf_counter() - began
                if step.outcome == "failed":
                    return

    def _explained(self, error: Exception, step: str) -> tuple[str, str]:
        if isinstance(error, StepFailed):
            return error.detail, error.remedy
        if type(error) is TimeoutError:
            return f"nothing happened for {self.timeout:g} s", hints.silence(step)
        if isinstance(error, _OF_THE_NETWORK):
            text = error.reason if isinstance(error, (ConnectFailed, Disconnected)) else plain_reason(error)
            return for_shell(text) or type(error).__name__, hints.of(error, step, self._parts.scheme, self._adapter.name)
        raise error

    # -- what the operating system can say -----------------------------------------------------------------------------------

    async def _resolve(self, stack: AsyncExitStack) -> str:
        with anyio.fail_after(self.timeout):
            found = await anyio.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return ", ".join(dict.fromkeys(str(address[0]) for *_, address in found))

    async def _connect(self, stack: AsyncExitStack) -> str:
        with anyio.fail_after(self.timeout):
            self._stream: anyio.abc.SocketStream = await anyio.connect_tcp(self._host, self._port)
        stack.push_async_callback(anyio.aclose_forcefully, self._stream)
        try:
            address: Any = self._stream.extra(anyio.abc.SocketAttribute.remote_address)
        except (OSError, anyio.TypedAttributeLookupError):
            return "and cut off at once"
        return f"{address[0]} port {address[1]}"

    async def _shake_hands(self, stack: AsyncExitStack) -> str:
        context = self.tls if self.tls is not None else ssl.create_default_context()
        with anyio.fail_after(self.timeout):
            await self._first_words()
            stream = await TLSStream.wrap(self._stream, hostname=self._host, ssl_context=context)
        stack.push_async_callback(anyio.aclose_forcefully, stream)
        tls = stream.extra(TLSAttribute.ssl_object)
        return f"{tls.version()}, {_certificate(tls.getpeercert() or {})}"

    async def _first_words(self) -> None:
        """Hear what the server says before TLS, where the protocol has it so. May raise `StepFailed`."""
        framing = ProtocolFeatures.of(self._adapter).framing
        said = b""
        try:
            while framing is not None and self._parts.scheme == "tls" and framing.plain_preface(said) == 0:
                said += await self._stream.receive()
        except RemoteProtocolError as error:
            raise StepFailed(error.text, "correct the URL, or the server's configuration") from None

    async def _find_socket(self, stack: AsyncExitStack) -> str:
        path = anyio.Path(unquote(self._parts.path))
        mode = (await path.stat()).st_mode
        if not stat.S_ISSOCK(mode):
            raise StepFailed(f"{path} is no socket", "the URL names another file than the one that the server listens on")
        return f"{path}, {stat.filemode(mode)}"

    # -- what polybus can say ----------------------------------------------------------------------------------------------

    async def _open(self, stack: AsyncExitStack) -> str:
        """The first half of the real connection: up to the transport. The second half waits for `_handshake`."""
        self._halves = _Halves(self._connector)
        limits = Limits(connect_timeout=self.timeout, handshake_timeout=self.timeout)
        self._bus = Bus(limits=limits)
        manager = connect(self._halves, bus=self._bus, protocol=self._adapter, headers=self.headers, tls=self.tls)
        self._group.start_soon(self._halves.enter, manager)
        await self._halves.transport_made.wait()
        if self._halves.error is not None:
            raise self._halves.error
        return f"to {self._halves.address}"

    async def _handshake(self, stack: AsyncExitStack) -> str:
        self._halves.go_on.set()
        await self._halves.known.wait()
        if self._halves.error is not None:
            raise self._halves.error
        self.peer: Peer = self._bus.peers[0]
        return f"{self._adapter.name} is ready"

    async def _meet(self, stack: AsyncExitStack) -> str:
        if await self.peer.extended():
            if self.peer.negotiation.answers_only:
                return "a polybus peer that only answers here: requests, publications and notifications to it"
            return "a polybus peer: streams, channels, wildcards and cancelling too"
        session = self.peer.link.session
        if session is not None and session.capabilities.patterns:
            return f"a {self._adapter.name} network: wildcards, no streams and no channels"
        return f"a bare {self._adapter.name} peer, or a silent one: no streams, channels or wildcards"

    async def _ask(self, stack: AsyncExitStack) -> str:
        subject = self.subject if self.subject != "" else ProtocolFeatures.of(self._adapter).unhandled or NOBODY
        times: list[float] = []
        answer = ""
        for _ in range(_ROUNDS if self.subject == "" else 1):
            began = perf_counter()
            try:
                value = await self.peer.request(subject, self.body, timeout=self.timeout)
                answer = f"answered with {shown(value)}"
            except DeadlineExceeded:
                self._say_of_fabric(subject)
                raise TimeoutError from None
            except RequestError as error:
                if self.subject != "":
                    raise
                answer = "nobody handles it, as expected" if isinstance(error, NoHandler) else f"answered with {error!r}"
            times.append(perf_counter() - began)
        return f"{subject}: {answer}; {median_of(times)} there and back"

    def _say_of_fabric(self, subject: str | int) -> None:
        """May raise `StepFailed`: on a fabric silence is the answer of an address that nobody has."""
        session = self.peer.link.session
        if session is not None and session.capabilities.filters:
            raise StepFailed(
                f"nobody answered to {subject} for {self.timeout:g} s: on a fabric an address that nobody has is silent",
                "say in the URL who is asked, as in ?peer=//device1/10AB/3, or what by --subject //device1/10AB/3/B; "
                "programs of another ?dialect= do not hear this one",
            )


def median_of(times: Sequence[float]) -> str:
    """Times in seconds, for people."""
    return f"{median(times) * 1000:.2f} ms"


class _Halves:
    """A connector that stops between the transport and the protocol's handshake, so that each can be timed."""

    reconnects = False

    def __init__(self, connector: Connector) -> None:
        self._connector = connector
        self.url = connector.url
        self.transport_made = anyio.Event()
        self.go_on = anyio.Event()
        self.known = anyio.Event()
        """Outcome of connecting."""
        self.error: Exception | None = None
        self.address = ""

    async def connect(self, options: DialOptions) -> Transport:
        try:
            transport = await self._connector.connect(options)
            self.address = transport.address
        except Exception as error:
            self.error = error
            raise
        finally:
            self.transport_made.set()
        await self.go_on.wait()
        return transport

    async def enter(self, manager: Any) -> None:
        """Enter a connection in a task of its own, and leave it when the task is cancelled."""
        try:
            async with manager:
                self.known.set()
                await anyio.sleep_forever()
        except Exception as error:
            self.error = error
        finally:
            self.known.set()


def _certificate(facts: Mapping[str, Any]) -> str:
    """The names and the days of a valid certificate. May raise `StepDoubtful`: they will not see it for long."""
    names = [value for kind, value in facts.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    expires = facts.get("notAfter")
    if expires is None:
        return "a certificate"
    left = datetime.fromtimestamp(ssl.cert_time_to_seconds(expires), UTC) - datetime.now(UTC)
    what = f"certificate for {', '.join(names) or 'no name'}, valid for {counted(left.days, 'more day')}"
    if left <= SOON:
        raise StepDoubtful(what, "renew it, and restart what serves with it: clients refuse one that has expired")
    return what
