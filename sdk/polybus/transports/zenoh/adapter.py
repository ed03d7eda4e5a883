"""Dialling and listening: opens the sessions of Zenoh."""

from __future__ import annotations

import logging
import socket
from typing import Final

import anyio
from attrs import define, field

from ..._util.log_fields import log_fields
from ...errors import BusError, ConnectFailed, LocalProtocolError, Unavailable, Unsupported
from ...plugins import (
    Admission,
    Closed,
    Connector,
    DialOptions,
    Fabric,
    Handshake,
    Listening,
    ListenOptions,
    ProtocolFeatures,
    Transport,
)
from .address import ZenohAddress, listening_address, zenoh_address
from .transport import ZenohTransport

logger: logging.Logger = logging.getLogger("polybus.transports")

_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 8.0
"""Seconds before a session that has ended is opened anew on the side that serves; they double from time to time."""
_PORTS_TRIED: Final = 5
_ADVICE: Final = "Is a router of Zenoh, or a bus that serves, running there? connect(..., wait=30) goes on trying"


def _fabric_of(options: DialOptions | ListenOptions) -> Fabric:
    """The form of the protocol. May raise `Unsupported`: it has none; `LocalProtocolError`: `tls` means nothing here."""
    if options.tls is not None:
        text = "Zenoh does TLS itself: in place of tls= write ?link=tls&ca=FILE, and where it serves &cert=FILE&key=FILE"
        raise LocalProtocolError(text, protocol="zenoh")
    fabric = None if options.adapter is None else ProtocolFeatures.of(options.adapter).fabric
    if fabric is None:
        name = "this protocol" if options.adapter is None else options.adapter.name
        raise Unsupported(f"{name} has no form over zenoh: up has")
    return fabric


def _reason(error: Exception) -> str:
    """Words of Zenoh, without the place in its source."""
    return str(error).partition(" at /")[0].strip()


@define
class ZenohConnector:
    """Dials ``zenoh://host:port``."""

    url: str
    address: ZenohAddress
    reconnects: bool = field(default=True, init=False)

    async def connect(self, options: DialOptions) -> Transport:
        """One attempt."""
        fabric, limits = _fabric_of(options), options.host.limits
        if options.headers:
            text = f"zenoh carries no headers ({', '.join(options.headers)})"
            raise LocalProtocolError(text, protocol="zenoh")
        transport = ZenohTransport(self.address, fabric, options.host, dialled=bool(self.address.host or self.address.connect))
        try:
            with anyio.fail_after(limits.connect_timeout + limits.handshake_timeout):
                await transport.open(serves=False)
        except TimeoutError:
            raise ConnectFailed(self.url, f"timed out after {limits.connect_timeout:g} s (Limits.connect_timeout)") from None
        except BusError:
            raise
        except Exception as error:  # of Zenoh, whose errors have no common base but this
            raise ConnectFailed(self.url, f"{_reason(error)} {_ADVICE}") from error
        return transport


class ZenohListening:
    """A session that listens, and its one connection to the bus; it is opened anew where it has ended."""

    def __init__(self, address: ZenohAddress, fabric: Fabric, options: ListenOptions) -> None:
        self.url: str = address.url()
        self._address, self._fabric, self._options = address, fabric, options
        self._scope = anyio.CancelScope()

    async def begin(self) -> None:
        """Open the session, and let the bus have it.

        Raises:
            OSError: It cannot listen there.
            BusError: The bus does not let it in.
        """
        transport = await self._opened()
        try:
            await self._admitted(transport)
        except Unavailable:
            pass  # the bus has not started yet: it is tried again
        self._options.host.spawn(self._keep, transport)

    async def _opened(self) -> ZenohTransport:
        tries = 1 if self._address.port or not self._address.host else _PORTS_TRIED
        while True:
            address = self._address if self._address.port else self._address.with_port(_free_port(self._address.host))
            transport = ZenohTransport(address, self._fabric, self._options.host, dialled=False)
            try:
                await transport.open(serves=True)
            except Exception as error:
                tries -= 1
                if not tries:
                    raise OSError(f"cannot listen on {self.url}: {_reason(error)}") from error
            else:
                self._address = address
                self.url = address.url()
                return transport

    async def _admitted(self, transport: ZenohTransport) -> None:
        options, gate = self._options, self._options.gate
        try:
            if (refused := gate.knock(transport.address)) is not None:
                raise refused
            outcome: list[Admission | BusError] = []
            decided = anyio.Event()

            def decide(result: Admission | BusError) -> None:
                outcome.append(result)
                decided.set()

            try:
                gate.admit(
                    Handshake(protocol=options.protocol, transport="zenoh", url=self.url, address=transport.address), decide
                )
                await decided.wait()
            except BaseException:
                gate.left(transport.address)
                raise
            if isinstance(outcome[0], BusError):
                gate.left(transport.address)
                raise outcome[0]
            gate.opened(transport, outcome[0])
            await transport.written()  # who is told that this bus serves is heard
        except BaseException:
            transport.abort(Closed(1006, "the bus did not let it in"))
            raise

    async def _keep(self, transport: ZenohTransport) -> None:
        pause = _PAUSE
        with self._scope:
            while True:
                await transport.ended.wait()
                await anyio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
                try:
                    transport = await self._opened()
                    await self._admitted(transport)
                except Unavailable:
                    continue
                except (OSError, BusError) as error:
                    logger.warning(
                        "the session of %s was not opened anew: %s", self.url, error, extra=log_fields(address=self.url)
                    )
                    continue
                pause = _PAUSE

    async def aclose(self) -> None:
        """Open nothing anew. The address is released with the connection, which is the same session."""
        self._scope.cancel()


def _free_port(host: str) -> int:
    """A port that is free now: Zenoh does not tell which one it has taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


class Zenoh:
    """``zenoh://host:port``"""

    name = "zenoh"
    carries_query = True
    """Options of the URL that are none of the protocol are for the session."""

    @staticmethod
    def load(serves: bool) -> None:
        """Import Zenoh. May raise `ImportError`: it is not installed."""
        try:
            import zenoh  # noqa: F401  # it is needed soon
        except ImportError:
            raise ImportError("zenoh:// needs eclipse-zenoh: pip install 'polybus[zenoh]'", name="zenoh") from None

    def connector(self, url: str) -> Connector:
        """For an address without the protocol."""
        return ZenohConnector(url, zenoh_address(url))

    def is_private(self, url: str) -> bool:
        """True if only this machine can reach that address, and it is joined to no other fabric."""
        return zenoh_address(url).is_private

    async def listen(self, url: str, options: ListenOptions) -> Listening:
        """Open a session that listens."""
        listening = ZenohListening(listening_address(url), _fabric_of(options), options)
        await listening.begin()
        return listening
