"""A plant that runs: its back end and its sensors, as processes or, for the memory transport, in this process."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Self, TypeAlias

import anyio
import anyio.abc
from attrs import define, field

from .. import Bus
from ..plugins.registry import find_transport
from .addresses import protocol_of
from .backend import Backend
from .children import Child, DemoError
from .play import TIMEOUT, NotHere, Workshop
from .sensors import Sensors

_NEEDED = {
    "fastapi": (("fastapi", "uvicorn"), "fastapi"),
    "http": (("uvicorn",), "fastapi"),
    "zenoh": (("zenoh",), "zenoh"),
}
"""Packages of a transport, and the extra that has them."""


def make_plant(transport: str, template: str, name: str, workshop: Workshop) -> Plant:
    """A plant that speaks over a transport; `template` makes a URL of an address."""
    if transport == "memory":
        return MemoryPlant(template.format(address=f"memory://{name}"), workshop.sabotage)
    return ProcessPlant(transport, template, name, workshop)


@define(eq=False, slots=False)
class ProcessPlant:
    """Server and sensors are processes of their own."""

    _transport: str
    _template: str
    _name: str
    _workshop: Workshop
    url: str = ""
    tls: ssl.SSLContext | None = None
    _options: list[str] = field(factory=list)
    _stack: AsyncExitStack = field(factory=AsyncExitStack)
    _backend: Child = field(init=False)
    _sensors: Child = field(init=False)

    async def __aenter__(self) -> Self:
        address, trust = self._address(), list[str]()
        if self._workshop.sabotage:
            self._options += ["--sabotage", self._workshop.sabotage]
        if self._transport in ("tls", "wss"):
            certificate = await self._workshop.certificate()
            if isinstance(certificate, str):
                raise NotHere(certificate)
            self.tls = ssl.create_default_context(cafile=str(certificate.ca))
            self._options += ["--tls", str(certificate.certificate), str(certificate.key)]
            trust = ["--ca", str(certificate.ca)]
        try:
            await self._start_backend(self._template.format(address=address))
            await self._start_sensors(*trust)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    def _address(self) -> str:
        if self._transport == "unix":
            if not hasattr(socket, "AF_UNIX"):
                raise NotHere("this system has no Unix sockets")
            return f"unix://{self._workshop.folder / self._name}.sock"
        needed, extra = _NEEDED.get(self._transport, ((), ""))
        if missing := [name for name in needed if find_spec(name) is None]:
            raise NotHere(f"{' and '.join(missing)} not installed: pip install 'polybus[{extra}]'")
        if self._transport == "fastapi":
            self._options.append("--fastapi")
            return "ws://127.0.0.1:0/bus"
        try:
            find_transport(self._transport)
        except ImportError as error:
            raise NotHere(f"the transport {self._transport} does not load: {error}") from error
        path = "/bus" if self._transport in ("ws", "wss", "http") else ""
        return f"{self._transport}://127.0.0.1:0{path}"

    def _child(self, role: str, *arguments: str) -> Child:
        return Child(role, *arguments, log=self._workshop.folder / f"{self._name}-{role}.log")

    async def _start_backend(self, url: str) -> None:
        url, mark, channel = url.partition("?channel=")  # how messages come to a client is no option of a server
        self._backend = await self._stack.enter_async_context(self._child("backend", url, *self._options))
        line = await self._backend.start()
        word, _, url = line.partition(" ")
        # An application says where it is itself; the bus is at a path of it.
        self.url = self._template.format(address=f"ws{url[4:]}/bus") if url.startswith("http") else url + mark + channel
        if word != "serving":
            raise DemoError(f"the back end said {line!r}")

    async def _start_sensors(self, *trust: str) -> None:
        self._sensors = await self._stack.enter_async_context(self._child("sensors", self.url, *trust))
        await self._sensors.start()

    async def kill(self) -> str:
        """End the back end without a word. Says what was done."""
        pid = self._backend.pid
        await self._backend.kill()
        return f"process {pid} killed"

    async def restart(self) -> None:
        await self._start_backend(self.url)

    def drain(self) -> None:
        self._backend.send(signal.SIGTERM)

    async def left(self) -> str:
        """Wait until it has, and say how; DemoError with the wrong status."""
        status = await self._backend.ended()
        if status != 0:
            raise DemoError(f"the back end left with status {status}")
        return "exit status 0"

    def stall_sensors(self) -> None:
        """Stop the sensors where they are: they read no more. NotHere where that cannot be done."""
        if not hasattr(signal, "SIGSTOP"):
            raise NotHere("this system cannot stop a process and let it go on")
        self._sensors.send(signal.SIGSTOP)

    def wake_sensors(self) -> None:
        self._sensors.send(signal.SIGCONT)


class AnsweringPlant(ProcessPlant):
    """Over a wire on which a server only answers: sensors have nothing to do there."""

    async def _start_sensors(self, *trust: str) -> None:
        """None."""


class BrokeredPlant(ProcessPlant):
    """The same behind a broker, which is one more process."""

    _for_servers = ""

    async def _start_backend(self, url: str) -> None:
        if not self._for_servers:
            self._options.append("--behind")
            broker = await self._stack.enter_async_context(self._child("broker", url, "csb+tcp://127.0.0.1:0"))
            word, *urls = (await broker.start()).split()
            if word != "between":
                raise DemoError(f"the broker said {word!r}")
            url, self._for_servers = urls
        else:
            url = self.url
        await super()._start_backend(f"{self._for_servers}&pool=2&server=plant")
        self.url = url

    def stall_sensors(self) -> None:
        raise NotHere("the broker closes who does not read, so the back end has nothing to drop")


@define(eq=False, slots=False)
class MemoryPlant:
    """Everything in this process and this event loop: that is what the memory transport is for."""

    url: str
    _sabotage: str
    tls: ssl.SSLContext | None = None
    _backend: Backend = field(init=False)
    _stack: AsyncExitStack = field(factory=AsyncExitStack)
    _group: anyio.abc.TaskGroup = field(init=False)
    _drained: anyio.Event = field(factory=anyio.Event)

    async def __aenter__(self) -> Self:
        await self.restart()
        self._group = await self._stack.enter_async_context(anyio.create_task_group())
        ready = anyio.Event()
        self._group.start_soon(Sensors().run, self.url, None, ready.set)
        with anyio.fail_after(TIMEOUT):
            await ready.wait()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._group.cancel_scope.cancel()
        await self.kill()
        await self._stack.aclose()

    async def kill(self) -> str:
        await self._backend.bus.aclose()
        return "the bus was closed (no process to kill)"

    async def restart(self) -> None:
        self._backend = Backend(self._sabotage)
        await self._stack.enter_async_context(self._backend.bus.serve(self.url, protocol=protocol_of(self.url, "plant")))

    def drain(self) -> None:
        self._group.start_soon(self._drain, self._backend.bus)

    async def _drain(self, bus: Bus) -> None:
        await bus.drain(TIMEOUT)
        self._drained.set()

    async def left(self) -> str:
        await self._drained.wait()
        return "drained"

    def stall_sensors(self) -> None:
        raise NotHere("there is no process to stop")

    def wake_sensors(self) -> None:
        """They were never stopped."""


Plant: TypeAlias = ProcessPlant | MemoryPlant
"""A plant as the steps see it: where it is, and how its back end and its sensors are stopped, killed and started."""
