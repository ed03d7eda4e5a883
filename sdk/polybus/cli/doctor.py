"""`polybus doctor`, which tests and times each step from name resolution to a request, and gives advice for a failure."""

from __future__ import annotations

import errno
import socket
import ssl
import stat
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime
from statistics import median
from time import perf_counter
from typing import Annotated, Any, Literal, TypeAlias
from urllib.parse import unquote, urlsplit

import anyio
import anyio.abc
from anyio.streams.tls import TLSAttribute, TLSStream
from attrs import asdict, define

from .. import (
    BadRequest,
    Bus,
    BusError,
    ConnectFailed,
    DeadlineExceeded,
    Disconnected,
    Forbidden,
    Limits,
    NoHandler,
    Peer,
    RequestError,
    Unauthorized,
    connect,
)
from ..errors import RemoteProtocolError
from ..events import LinkDown
from ..plugins import Connector, DialOptions, ProtocolAdapter, ProtocolFeatures, Transport
from ..plugins.extensions import core_of
from ..plugins.registry import resolve_url
from ..plugins.tools import EXPIRES_SOON, counted, shown, without_secrets
from ..speedups import ACTIVE
from ..transports.sockets import plain_reason
from ..transports.tls import client_fault
from .options import (
    Header,
    Tls,
    argument,
    check_for_cluster,
    cluster_of,
    connects,
    duration,
    flag,
    headers_of,
    json_line,
    option,
    parse_body,
    parse_subject,
    warn_of_slips,
)
from .problems import NATS_CREDENTIALS, PeerError, UsageError, for_shell, say, without_wait
from .show import Printer

_MARKS = {"ok": ("✓", "green"), "doubtful": ("!", "yellow"), "failed": ("✗", "bold red"), "not reached": ("–", "dim")}


@connects
def doctor(
    url: Annotated[str, argument("URL", "Server URL. For a cluster: nats+tcp://host/name, or auto for POLYBUS_CLUSTER.")],
    subject: Annotated[str, option("SUBJECT", "Subject to request. By default, any answer counts.")] = "",
    body: Annotated[str | None, option("BODY", "JSON body for --subject, or - to read it from stdin.")] = None,
    timeout: Annotated[float, duration("Seconds for each step.", min=0.1)] = 5.0,
    as_json: Annotated[bool, flag("--json", "Print one JSON document.")] = False,
    header: Header = None,
    tls: Tls = None,
) -> None:
    """Diagnose a connection step by step, and give advice for a step that fails.

    The steps are name resolution, connection, TLS, upgrade, handshake, peer and request. For a cluster, doctor also checks the
    NATS server, JetStream, nodes and stores. Exits with status 1 if a step fails.
    """
    cluster = cluster_of(url, tls=tls)
    if cluster is None:
        resolve_url(url)
        warn_of_slips(url)
    value = parse_body(body)
    if body is not None and not subject:
        raise UsageError("--body without --subject: add the subject of the request")
    what = parse_subject(url, subject)
    if cluster is None:
        examination = Examination(url, what, value, timeout, headers_of(header), tls)
    else:
        from .doctor_cluster import ClusterExamination

        check_for_cluster(header)
        examination = ClusterExamination.of(cluster, what, value, timeout)
    anyio.run(examination.run)
    failed = next((step for step in examination.steps if step.outcome == "failed"), None)
    if as_json:
        steps = [asdict(step) for step in examination.steps]
        result = {"url": without_secrets(url), "ok": failed is None, "steps": steps, "speedups": ACTIVE}
        print(json_line(result, pretty=True), flush=True)
    else:
        _show(examination.steps)
    for step in examination.steps:
        if step.outcome == "doubtful":  # affects some clients
            say(f"{step.name}: {step.fault}")
    if failed is not None:
        raise PeerError(f"{failed.name}: {failed.fault}")


def _show(steps: list[DoctorStep]) -> None:
    times = ["" if step.seconds is None else f"{step.seconds * 1000:.1f} ms" for step in steps]
    rows = [(_MARKS[step.outcome][0], step.name, time, step.detail) for step, time in zip(steps, times, strict=True)]
    Printer().table(("", "step", "time", "result"), rows, [_MARKS[step.outcome][1] for step in steps])
    print(f"Speedups: {'C' if ACTIVE else 'Python'}.")
    sys.stdout.flush()


# -- the steps -------------------------------------------------------------------------------------------------------------


Outcome: TypeAlias = Literal["ok", "doubtful", "failed", "not reached"]
Check: TypeAlias = Callable[[], Awaitable[str]]
"""Function that takes a step. Returns what it found, or raises an error."""

NOBODY = "polybus.doctor"
"""A subject without a handler. The error answer proves that requests get through."""
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

    @property
    def fault(self) -> str:
        return f"{self.detail}; {self.remedy}" if self.remedy else self.detail


class StepFailed(Exception):
    """The step failed, and later steps cannot be run."""

    def __init__(self, detail: str, remedy: str) -> None:
        super().__init__(detail)
        self.detail = detail
        self.remedy = remedy


class StepDoubtful(StepFailed):
    """The step found a problem that affects some clients. Later steps still run."""


@define(slots=False)
class Examination:
    """Checks a server. `run` stores the results in `steps`, including every error that a server can cause."""

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

    def adapted(self, adapter: ProtocolAdapter) -> ProtocolAdapter:
        return adapter

    def planned(self) -> dict[str, Check]:
        scheme = self._parts.scheme
        plan: dict[str, Check] = {}
        if self._host and scheme in ("tcp", "tls", "ws", "wss", "http", "https"):
            plan |= {"resolve": self._resolve, "connect": self._connect}
            if scheme in ("tls", "wss", "https"):
                plan["tls"] = self._shake_hands
        elif scheme == "unix":
            plan["socket file"] = self._find_socket
        opened = "upgrade" if scheme in ("ws", "wss") else "open"
        return plan | {opened: self._open, "handshake": self._handshake, "peer": self._meet, "request": self._ask}

    async def run(self) -> None:
        async with anyio.create_task_group() as self._group, AsyncExitStack() as self._stack:
            self._stack.callback(self._group.cancel_scope.cancel)
            for step, take in zip(self.steps, self._plan.values(), strict=True):
                began = perf_counter()
                try:
                    with anyio.fail_after(self.timeout + 1):  # longer than the inner timeouts, whose errors say more
                        step.detail = await take()
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
            return f"nothing happened for {self.timeout:g} s", silence_hint(step)
        if isinstance(error, _OF_THE_NETWORK):
            fault = error.__cause__ if isinstance(error, ConnectFailed) else error
            if isinstance(fault, ssl.SSLError):
                detail, remedy = client_fault(fault)
                return for_shell(detail), for_shell(remedy)
            text = without_wait(error.reason) if isinstance(error, (ConnectFailed, Disconnected)) else plain_reason(error)
            return for_shell(text) or type(error).__name__, hint_of(error, step, self._parts.scheme, self._adapter.name)
        raise error

    # -- steps without polybus -----------------------------------------------------------------------------------------

    async def _resolve(self) -> str:
        with anyio.fail_after(self.timeout):
            found = await anyio.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        return ", ".join(dict.fromkeys(str(address[0]) for *_, address in found))

    async def _connect(self) -> str:
        with anyio.fail_after(self.timeout):
            self._stream: anyio.abc.SocketStream = await anyio.connect_tcp(self._host, self._port)
        self._stack.push_async_callback(anyio.aclose_forcefully, self._stream)
        try:
            address: Any = self._stream.extra(anyio.abc.SocketAttribute.remote_address)
        except (OSError, anyio.TypedAttributeLookupError):
            return "connected, but disconnected at once"
        return f"{address[0]} port {address[1]}"

    async def _shake_hands(self) -> str:
        context = self.tls if self.tls is not None else ssl.create_default_context()
        with anyio.fail_after(self.timeout):
            await self._first_words()
            stream = await TLSStream.wrap(self._stream, hostname=self._host, ssl_context=context)
        self._stack.push_async_callback(anyio.aclose_forcefully, stream)
        tls = stream.extra(TLSAttribute.ssl_object)
        return f"{tls.version()}, {_certificate(tls.getpeercert() or {})}"

    async def _first_words(self) -> None:
        """Read the message that the server sends before TLS, if the protocol has such a message. Raises `StepFailed`."""
        framing = ProtocolFeatures.of(self._adapter).framing
        said = b""
        try:
            while framing is not None and self._parts.scheme == "tls" and framing.plain_preface(said) == 0:
                said += await self._stream.receive()
        except RemoteProtocolError as error:
            raise StepFailed(error.text, "correct the URL or the configuration of the server") from None

    async def _find_socket(self) -> str:
        path = anyio.Path(unquote(self._parts.path))
        mode = (await path.stat()).st_mode
        if not stat.S_ISSOCK(mode):
            raise StepFailed(f"{path} is not a socket", "no server listens on this file: correct the URL")
        return f"{path}, {stat.filemode(mode)}"

    # -- steps with polybus --------------------------------------------------------------------------------------------

    async def _open(self) -> str:
        """Open the transport. The handshake on the same connection waits for `_handshake`."""
        limits = Limits(connect_timeout=self.timeout, handshake_timeout=self.timeout)
        self._bus = Bus(limits=limits)
        self._events = self._bus.events()
        self._go_on = anyio.Event()
        self._known = anyio.Event()  # set once the handshake has succeeded or failed
        return f"to {await self._group.start(self._stay_connected)}"

    async def _stay_connected(self, *, task_status: anyio.abc.TaskStatus[str]) -> None:
        halves = _Halves(self._connector, task_status, self._go_on)
        self._fault: Exception | None = None
        try:
            async with connect(halves, bus=self._bus, protocol=self._adapter, headers=self.headers, tls=self.tls):
                self._known.set()
                await anyio.sleep_forever()
        except Exception as error:
            if not self._go_on.is_set():
                raise  # to `_open`
            self._fault = error
        finally:
            self._known.set()

    async def _handshake(self) -> str:
        self._go_on.set()
        await self._known.wait()
        if self._fault is not None:
            raise self._fault
        if not self._bus.peers:  # the server has already left
            raise Disconnected(await anext(event.reason async for event in self._events if isinstance(event, LinkDown)))
        self.peer: Peer = self._bus.peers[0]
        return f"{self._adapter.name} is ready"

    async def _meet(self) -> str:
        if await self.peer.extended():
            if core_of(self.peer).negotiation.answers_only:
                return "a polybus peer that only responds on this link, to requests, publications and notifications"
            return "a polybus peer, with streams, channels, wildcards and cancellation"
        session = core_of(self.peer).link.session
        if session is not None and session.capabilities.patterns:
            return f"a {self._adapter.name} network, with wildcards but without streams and channels"
        return f"a {self._adapter.name} peer without polybus, or a silent peer: no streams, channels or wildcards"

    async def _ask(self) -> str:
        return await self.asked(self.peer, ProtocolFeatures.of(self._adapter).unhandled or NOBODY)

    async def asked(self, whom: Bus | Peer, nobody: str | int) -> str:
        """Send a request to the given subject, or to one without a handler. Returns the answer and the round-trip time."""
        subject = nobody if self.subject == "" else self.subject
        times: list[float] = []
        answer = ""
        for _ in range(_ROUNDS if self.subject == "" else 1):
            began = perf_counter()
            try:
                value = await whom.request(subject, self.body, timeout=self.timeout)
                answer = f"answered with {shown(value)}"
            except DeadlineExceeded:
                self._say_of_fabric(subject)
                raise TimeoutError from None
            except RequestError as error:
                if self.subject != "":
                    raise
                answer = "no handler, as expected" if isinstance(error, NoHandler) else f"answered with {error!r}"
            times.append(perf_counter() - began)
        return f"{subject}: {answer}; round trip {median(times) * 1000:.2f} ms"

    def _say_of_fabric(self, subject: str | int) -> None:
        session = core_of(self.peer).link.session
        if session is not None and session.capabilities.filters:
            raise StepFailed(
                f"no answer from {subject} within {self.timeout:g} s: a fabric does not report unused addresses",
                "name the peer in the URL, as in ?peer=//device1/10AB/3, or the method with --subject //device1/10AB/3/B; "
                "programs with a different ?dialect= do not receive this request",
            )


@define
class _Halves:
    """A connector that pauses between the transport and the protocol's handshake, so that doctor can time each part."""

    reconnects = False

    _connector: Connector
    _opened: anyio.abc.TaskStatus[str]
    _go_on: anyio.Event

    @property
    def url(self) -> str:
        return self._connector.url

    async def connect(self, options: DialOptions) -> Transport:
        transport = await self._connector.connect(options)
        self._opened.started(transport.address)
        await self._go_on.wait()
        return transport


def _certificate(facts: Mapping[str, Any]) -> str:
    """Return the names and remaining days of the certificate. Raises `StepDoubtful` if it expires soon."""
    names = [value for kind, value in facts.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
    expires = facts.get("notAfter")
    if expires is None:
        return "a certificate"
    left = datetime.fromtimestamp(ssl.cert_time_to_seconds(expires), UTC) - datetime.now(UTC)
    what = f"certificate for {', '.join(names) or 'no name'}, valid for {counted(left.days, 'more day')}"
    if left <= EXPIRES_SOON:
        raise StepDoubtful(what, "renew it and restart the server: clients reject an expired certificate")
    return what


# -- advice for failed steps -----------------------------------------------------------------------------------------------


_BY_NUMBER = {
    errno.ECONNREFUSED: (
        "start the server, or correct host and port; "
        "a server in a container or on another machine must not listen on 127.0.0.1 only"
    ),
    errno.ENOENT: "the file does not exist: start the server, or correct the path in the URL",
    errno.EACCES: "permission denied: check the permissions of the socket and its folder",
    errno.ENETUNREACH: "no route: is the network or the VPN up?",
    errno.EHOSTUNREACH: "no route to the host: is it running, and in this network?",
    errno.ECONNRESET: "the server or a proxy reset the connection: check its log",
}
_BEHIND_PROXY = "the proxy responds, but the server behind it does not"
_BY_CLASS: tuple[tuple[type[Exception], str], ...] = (
    (Unauthorized, "identify yourself, for example with --header 'authorization: Bearer TOKEN'"),
    (Forbidden, "this identity, origin or host is not allowed: ask the operator of the server, or try another --header"),
    (NoHandler, "the server works, but has no such handler: is the subject spelled as in handle()?"),
    (BadRequest, "the server works, but rejects the body: correct --body"),
    (RequestError, "the server works, but its handler failed: check its log"),
    (socket.gaierror, "the name is misspelled, or this machine's DNS does not know it"),
)
_BY_STATUS = {
    404: "the server responds, but has no bus at this path: correct the path in the URL",
    421: "the server does not accept this host name: add it with serve(hosts=...) or attach(hosts=...)",
    502: _BEHIND_PROXY,
    503: _BEHIND_PROXY,
    504: _BEHIND_PROXY,
}
_SILENCE = {
    "resolve": "the DNS server does not answer: check the DNS settings",
    "connect": "a firewall may drop the packets, or the address is wrong",
    "tls": "the port accepts connections, but does not use TLS: try the URL without TLS (ws, tcp)",
    "upgrade": "the port accepts connections, but not the WebSocket upgrade: compare port and path with the server's",
    "handshake": "the server may use a different protocol than the URL",
    "request": (
        "the connection is open, but the server does not answer: it may hang, or use a different protocol, format or dialect"
    ),
}
_NATS_PORTS = "is this the client port (4222 by default), and not the port for monitoring (8222) or routes (6222)?"
_OWN_CERTIFICATE = "does it require a client certificate (--cert FILE --key FILE)?"
_HANDSHAKE = "compare the protocol and options in the URL (format=, dialect=) with the server's"


def silence_hint(step: str) -> str:
    return _SILENCE.get(step, "the server does not respond: check its log")


def hint_of(error: Exception, step: str, scheme: str, protocol: str) -> str:
    if isinstance(error, Unauthorized) and protocol == "nats":
        return NATS_CREDENTIALS
    if isinstance(error, Forbidden) and (hint := _refusal_hint(str(error).lower())) is not None:
        return hint
    for kind, hint in _BY_CLASS:
        if isinstance(error, kind):
            return hint
    number: Any = getattr(error, "errno", None)
    of_nats = step == "handshake" and protocol == "nats"
    if (isinstance(error, TimeoutError) or number == errno.ETIMEDOUT) and not of_nats:
        return silence_hint(step)
    if number in _BY_NUMBER and scheme != "memory":
        return _BY_NUMBER[number]
    if step == "connect":  # without errno if the name has several addresses
        return _BY_NUMBER[errno.ECONNREFUSED]
    if step == "tls":
        return "try the URL without TLS (ws, tcp)"
    encrypted = scheme in ("tls", "wss", "https")
    text = str(getattr(error, "reason", None) or error)
    if "no common sub-protocol" in text:
        return "the server responds, but uses a different protocol than the URL"
    status: Any = getattr(error, "status", None)
    if step == "upgrade" and status in (400, 426):
        return "the server does not accept the upgrade here: does a proxy drop the Upgrade and Connection headers?"
    if status is not None:
        return _BY_STATUS.get(status, "the server responds, but not as a bus: compare protocol and path with the server's")
    if step == "upgrade":
        certificate = f"{_OWN_CERTIFICATE} Or the port uses a different transport (tls)"
        other = certificate if encrypted else "it may require TLS (wss), or use a different transport (tcp)"
        return f"is this the port and path of a WebSocket server? {other}"
    if "instead of" in text:  # the text already has advice
        return ""
    if "HTTP" in text:
        return f"the server uses HTTP: try {protocol}+ws:// and the path of the bus"
    if of_nats:
        return f"{_NATS_PORTS} {'D' + _OWN_CERTIFICATE[1:] if encrypted else ''}".rstrip()
    if step in ("handshake", "peer", "request") or isinstance(error, Disconnected):
        tls = f"; {_OWN_CERTIFICATE if encrypted else 'does it require TLS (tls, wss)?'}"
        return f"the server closed the connection: {_HANDSHAKE}{tls}"
    return "is the server running there, with this name?"


def _refusal_hint(text: str) -> str | None:
    if "does not say why" in text:
        return "compare the path with the server's URL"
    if "origin " in text:
        return "the server only accepts the origins in its origins=: leave out --header origin, or have this origin added"
    if "on its own machine" in text:
        return "a proxy reports that this client is on another machine, and the server has no authenticate"
    if "accepts no clients" in text or "reached from other machines" in text:
        return "the server has no authenticate and can be reached from other machines: check its log"
    return None
