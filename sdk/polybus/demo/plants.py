"""A plant that runs: its back end and its sensors, as processes or, for the memory transport, in this process."""

from __future__ import annotations

import signal
import socket
import ssl
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import Any, Protocol, Self

import anyio
import anyio.abc

from ..plugins.registry import find_transport
from .backend import Backend
from .children import Child, DemoError
from .play import TIMEOUT, NotHere, Workshop
from .sensors import Sensors


class Plant(Protocol):
    """The interface that the steps use."""

    url: str
    tls: ssl.SSLContext | None

    async def __aenter__(self) -> Self: ...
    async def __aexit__(self, *error: object) -> None: ...

    async def kill(self) -> str:
        """End the back end without a word. Says what was done."""
        ...

    async def restart(self) -> None:
        """Start it again at the same address."""
        ...

    def drain(self) -> None:
        """Tell it to leave in order."""
        ...

    async def left(self) -> str:
        """Wait until it has. Says how it left.

        Raises:
            DemoError: With the wrong status.
        """
        ...

    def stall_sensors(self) -> None:
        """Stop the sensors where they are: they read no more.

        Raises:
            NotHere: They are no process, or processes cannot be stopped here.
        """
        ...

    def wake_sensors(self) -> None:
        """Let them go on."""
        ...


def make_plant(transport: str, template: str, row: str, workshop: Workshop) -> Plant:
    """A plant that speaks over a transport; `template` makes a URL of an address."""
    if transport == "memory":
        name = row.replace(" ", "-")
        return MemoryPlant(template.format(address=f"memory://{name}"), workshop.sabotage)
    return ProcessPlant(transport, template, row, workshop)


class ProcessPlant:
    """Server and sensors are processes of their own."""

    def __init__(self, transport: str, template: str, name: str, workshop: Workshop) -> None:
        self.url: str = ""
        self.tls: ssl.SSLContext | None = None
        self._transport = transport
        self._template = template
        self._name = name.replace(" ", "-")
        self._workshop = workshop
        self._options: list[str] = ["--sabotage", workshop.sabotage] if workshop.sabotage else []
        self._stack = AsyncExitStack()
        self._backend: Child | None = None
        self._sensors: Child | None = None

    async def __aenter__(self) -> Self:
        address = self._address()
        trust = []
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
        needed = {"fastapi": ("fastapi", "uvicorn"), "http": ("uvicorn",)}.get(self._transport, ())
        if missing := [name for name in needed if find_spec(name) is None]:
            raise NotHere(f"{' and '.join(missing)} not installed: pip install 'polybus[fastapi]'")
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
        assert self._backend is not None
        pid = self._backend.pid
        await self._backend.kill()
        return f"process {pid} killed"

    async def restart(self) -> None:
        await self._start_backend(self.url)

    def drain(self) -> None:
        assert self._backend is not None
        self._backend.send(signal.SIGTERM)

    async def left(self) -> str:
        assert self._backend is not None
        status = await self._backend.ended()
        if status != 0:
            raise DemoError(f"the back end left with status {status}")
        return "exit status 0"

    def stall_sensors(self) -> None:
        assert self._sensors is not None
        if not hasattr(signal, "SIGSTOP"):
            raise NotHere("this system cannot stop a process and let it go on")
        self._sensors.send(signal.SIGSTOP)

    def wake_sensors(self) -> None:
        assert self._sensors is not None
        self._sensors.send(signal.SIGCONT)


class AnsweringPlant(ProcessPlant):
    """Over a wire on which a server only answers: sensors have nothing to do there."""

    async def _start_sensors(self, *trust: str) -> None:
        """None."""


class BrokeredPlant(ProcessPlant):
    """The same behind a broker, which is one more process."""

    def __init__(self, transport: str, template: str, name: str, workshop: Workshop) -> None:
        super().__init__(transport, template, name, workshop)
        self._options.append("--behind")
        self._for_servers = ""

    async def _start_backend(self, url: str) -> None:
        if not self._for_servers:
            broker = await self._stack.enter_async_context(self._child("broker", url, "csb+tcp://127.0.0.1:0"))
            word, *urls = (await broker.start()).split()
            if word != "between":
                raise DemoError(f"the broker said {word!r}")
            url, self._for_servers = urls
        else:
            url = self.url
        await super()._start_backend(f"{self._for_servers}&pool=2&server=plant")
        self.url: str = url

    def stall_sensors(self) -> None:
        raise NotHere("the broker closes who does not read, so the back end has nothing to drop")


class MemoryPlant:
    """Everything in this process and this event loop: that is what the memory transport is for."""

    def __init__(self, url: str, sabotage: str) -> None:
        self.url: str = url
        self.tls: ssl.SSLContext | None = None
        self._sabotage = sabotage
        self._backend: Backend | None = None
        self._stack = AsyncExitStack()
        self._group: anyio.abc.TaskGroup | None = None
        self._drained: Any = None

    async def __aenter__(self) -> Self:
        await self.restart()
        self._group = await anyio.create_task_group().__aenter__()
        ready = anyio.Event()
        self._group.start_soon(Sensors().run, self.url, None, ready.set)
        with anyio.fail_after(TIMEOUT):
            await ready.wait()
        return self

    async def __aexit__(self, *error: object) -> None:
        assert self._group is not None
        self._group.cancel_scope.cancel()
        await self._group.__aexit__(None, None, None)
        await self.kill()
        await self._stack.aclose()

    async def kill(self) -> str:
        if self._backend is not None:
            await self._backend.bus.aclose()
        return "the bus was closed (no process to kill)"

    async def restart(self) -> None:
        self._backend = Backend(self._sabotage)
        await self._stack.enter_async_context(self._backend.bus.serve(self.url))

    def drain(self) -> None:
        assert self._group is not None
        assert self._backend is not None
        self._drained = anyio.Event()
        self._group.start_soon(self._drain, self._backend)

    async def _drain(self, backend: Backend) -> None:
        await backend.bus.drain(TIMEOUT)
        self._drained.set()

    async def left(self) -> str:
        await self._drained.wait()
        return "drained"

    def stall_sensors(self) -> None:
        raise NotHere("there is no process to stop")

    def wake_sensors(self) -> None:
        """They were never stopped."""
