"""Priorities on a link that carries less than is asked of it: a TCP peer that reads no faster than it is told."""

import json
import socket

import anyio
import anyio.lowlevel

from polybus import connect
from polybus.protocols import UProtocol
from tests.support import BOUND

PRIORITIES = {"log.>": "CS0", "door.>": "CS6"}
BODY = "x" * 8192


async def test_on_a_saturated_link_cs6_overtakes_all_cs0_that_still_waits() -> None:
    with anyio.fail_after(BOUND), socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = f"uprotocol+tcp://127.0.0.1:{listener.getsockname()[1]}"
        async with connect(url, protocol=UProtocol(priorities=PRIORITIES)) as bus:
            sock, _ = listener.accept()
            sent, order, data = 0, list[str](), bytearray()
            while bus.stats().queued < 300:  # what the system takes, it takes
                bus.publish_nowait("log.x", BODY)
                sent += 1
                await anyio.lowlevel.checkpoint()
            for _ in range(40):
                bus.publish_nowait("door.x", BODY)
            with sock:
                sock.setblocking(False)
                while len(order) < sent + 40:
                    await anyio.wait_readable(sock)
                    data += sock.recv(1 << 20)
                    while len(data) >= 4 and len(data) >= (end := 4 + int.from_bytes(data[:4], "big")):
                        order.append(json.loads(data[4:end])["priority"])
                        del data[:end]
            await bus.aclose()
    first = order.index("CS6")
    last = len(order) - 1 - order[::-1].index("CS6")
    assert last - first < 40 * 8 // 7 + 1  # one in eight is whoever has waited longest
    assert order[last:].count("CS0") > 280  # so many were published before them and leave after them
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):
        assert first < 50  # 128 KiB in the kernel, where it would take 4 MiB by itself; and what is about to be written
