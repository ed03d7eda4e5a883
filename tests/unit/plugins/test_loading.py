"""What a program has named before its event loop runs is loaded by then: nothing is imported while others wait."""

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import polybus
from tests.support import BOUND, free_port

ENTITY = "entity=//plant.example/tanks/1"
WIRES = [
    *(f"ubre+{transport}://" for transport in ("tcp", "ws", "unix", "memory")), "csb+ws://", "jrep+tcp://",
    f"uprotocol+unix://?{ENTITY}", f"uprotocol+tcp://?{ENTITY}&format=protobuf", "ubre+tcp://?format=binary",
    "jrep+http://?channel=poll", "jrep+http://?channel=events", "jrep+http://?channel=websocket", f"uprotocol+http://?{ENTITY}",
]  # fmt: skip
PROGRAM = """
import json
import os
import sys

import anyio

from polybus import Bus, connect


def imported_later(server_url, client_url, backend):
    subject = 0x00010001 if server_url.startswith("csb") else "echo"
    bus = Bus()

    @bus.handle(subject)
    async def echo(body: object) -> object:
        return body

    async def main() -> set[str]:
        await anyio.sleep(0)
        before = set(sys.modules)
        async with server:
            async with client as peer:
                assert await peer.request(subject, "x", timeout=30) == "x"
        return set(sys.modules) - before

    server, client = bus.serve(server_url), connect(client_url)
    return anyio.run(main, backend=backend)


for case in json.loads(sys.argv[1]):
    if (child := os.fork()) == 0:  # for each a process that has loaded polybus and nothing else
        print(json.dumps([case, sorted(imported_later(*case))]), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
"""


def urls_of(wire: str, folder: Path) -> tuple[str, str]:
    """Of a server and its client."""
    scheme, _, query = wire.partition("://")
    transport = scheme.partition("+")[2]
    if transport == "unix":
        address = str(folder / f"{scheme}.sock")
    elif transport == "memory":
        address = "plant"
    else:
        address = f"127.0.0.1:{free_port()}{'' if transport == 'tcp' else '/bus'}"
    served = "" if "channel=" in query else query
    return f"{scheme}://{address}{served}", f"{scheme}://{address}{query}"


# hypercorn, which serves HTTP on trio, is loaded by the listener: before it, nobody knows on which loop it will be.
CASES = [*((wire, "asyncio") for wire in WIRES), ("ubre+tcp://", "trio"), ("ubre+ws://", "trio")]


def test_the_first_connection_of_a_wire_that_was_named_imports_nothing(tmp_path: Path) -> None:
    cases = [[*urls_of(wire, tmp_path), backend] for wire, backend in CASES]
    command = [sys.executable, "-c", PROGRAM, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=len(cases) * BOUND, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == [[case, []] for case in cases], done.stderr


SERVED = """
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

import polybus


@asynccontextmanager
async def lifespan(bus: polybus.Bus) -> AsyncIterator[None]:
    print("polybus.transports.websocket" in sys.modules, "polybus.transports._stream.listen" in sys.modules)
    yield


polybus.run(polybus.Bus(lifespan=lifespan), *sys.argv[1:])
"""


def test_run_loads_what_its_urls_name_before_the_bus_starts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(SERVED)
    command = [sys.executable, str(program), "ubre+ws://127.0.0.1:0/bus"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "True True\n"
        finally:
            process.kill()


def test_every_entry_point_of_the_package_leads_to_something() -> None:
    text = (Path(polybus.__file__).parent / "entry_points.txt").read_text(encoding="utf-8")
    places = [line.partition(" = ")[2] for line in text.splitlines() if " = " in line and not line.startswith("#")]
    assert len(places) > 20
    for place in places:
        assert callable(pkgutil.resolve_name(place)), place
