"""A real Prometheus with the rules of `examples/operate`, a real service, and the cause of each alert."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import httpx
import pytest

from polybus import RemoteError, connect
from tests.integration.interop.nats_servers import nats_server
from tests.support import BOUND, eventually, free_port

from .tools import FILES, ROOT, prometheus, with_ports

pytestmark = pytest.mark.timeout(400)

QUICKER = 30
"""All times of the rules are divided by this."""
SECONDS = {"s": 1, "m": 60}


def quicker(rules: str) -> str:
    """The rules for a test that lasts less than a minute."""
    return re.sub(r"\b(\d+)([sm])\b", lambda found: f"{int(found[1]) * SECONDS[found[2]] // QUICKER}s", rules)


@contextmanager
def trouble(port: int, metrics: int, cluster: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.integration.operate.trouble", str(port), str(metrics)]
    environment = os.environ | {"POLYBUS_CLUSTER": cluster}
    with subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL) as process:
        try:
            yield process
        finally:
            process.kill()


async def firing(api: str) -> set[str]:
    async with httpx.AsyncClient() as client:
        try:
            answer = await client.get(f"{api}/alerts")
        except httpx.TransportError:  # it starts
            return set()
    if answer.status_code != 200:
        return set()
    return {alert["labels"]["alertname"] for alert in answer.json()["data"]["alerts"] if alert["state"] == "firing"}


async def test_each_alert_fires_when_its_cause_is_there(tmp_path: Path) -> None:
    port, metrics, beside = free_port(), free_port(), free_port()
    url = f"ubre+tcp://127.0.0.1:{port}"

    fired: set[str] = set()

    async def all_but_down() -> bool:
        """On a busy machine a scrape may be late, and end an alert for a moment."""
        fired.update(await firing(api))
        return fired >= {"HandlersFail", "Overloaded", "MessagesLost", "DeadLetters", "BacklogGrows"}

    async def down() -> bool:
        return {"Down", "DeadLetters"} <= await firing(api)

    async def without_store() -> bool:
        return {"StoreUnavailable", "NotReady"} <= await firing(api)

    with (
        nats_server("wheel", f'jetstream {{ store_dir: "{tmp_path / "js"}" }}') as nats,
        trouble(port, metrics, f"{nats.url}/shop") as process,
        trouble(free_port(), beside, f"{nats.url}/shop"),
    ):
        async with connect(url, wait=BOUND) as bus, connect(url) as other:

            async def cause() -> None:
                number = 0
                while True:
                    number += 1
                    await bus.request("publish", number, timeout=BOUND)
                    with suppress(RemoteError):
                        await bus.request("fail", timeout=BOUND)
                    await anyio.sleep(0.1)  # a rate, not a flood

            _waiting = [other.request("hang", timeout=600) for _ in range(2)]  # for one place
            await bus.request("poison", timeout=BOUND)
            (tmp_path / "alerts.yml").write_text(quicker((FILES / "alerts.yml").read_text()))
            targets = with_ports("prometheus.yml", (metrics, beside))
            quick = "global: { scrape_interval: 2s, evaluation_interval: 1s }"
            with prometheus(tmp_path, f"{quick}\n{targets}") as api:
                async with anyio.create_task_group() as group:
                    group.start_soon(cause)
                    await eventually(all_but_down, 300)
                    group.cancel_scope.cancel()
                process.kill()
                await eventually(down, 300)  # and the other process still reports the dead letter
                nats.kill()
                await eventually(without_store, 300)
