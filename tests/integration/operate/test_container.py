"""The image of `polybus new`, without a daemon: its command as its user, on a read-only file system and as process 1."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import psutil
import pytest
from attrs import frozen

import polybus
from polybus import connect
from polybus.cli.app import run
from tests.integration.web.browser import missing
from tests.support import BOUND, eventually, free_port

MOUNTS = """
set -eu
mount --make-rprivate /
mount -t tmpfs none /mnt
mkdir /mnt/app /mnt/venv /mnt/sdk
mount --bind "$APP" /mnt/app
mount --bind "$VENV" /mnt/venv
mount --bind "$SDK" /mnt/sdk
mount -t proc proc /proc
for place in / /tmp /var /run /dev/shm /mnt/app /mnt/venv /mnt/sdk /mnt; do
    if mountpoint -q $place; then mount -o remount,bind,ro $place; fi
done
cd /mnt/app
for place in /mnt/app /tmp /var/tmp; do if touch $place/x 2>/dev/null; then exit 9; fi; done
exec setpriv --reuid "$USER_ID" --regid "$USER_ID" --clear-groups --no-new-privs --inh-caps=-all --bounding-set=-all \\
    env -i $ENVIRONMENT PYTHONPATH=/mnt/sdk "$@"
"""
"""What a container runtime does for `--read-only --user --cap-drop ALL`."""
SLOW = """
import anyio
@bus.handle("order.slow")
async def slow(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "done"
"""


@frozen
class Container:
    process: psutil.Process
    """Process 1 of the container."""
    outer: subprocess.Popen[bytes]
    port: int


def instruction(dockerfile: str, name: str) -> str:
    (found,) = re.findall(rf"^{name} (.+)$", dockerfile, re.M)
    return str(found)


@contextmanager
def container(app: Path, log: Path, host: str | None = None) -> Iterator[Container]:
    """Run the command of the Dockerfile in a folder: at this host, or in a network of its own at the one that the image has."""
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mountpoint"))):
        missing("containers need root, util-linux and mount")
    dockerfile, port = (app / "Dockerfile").read_text(), free_port()
    _, *arguments = json.loads(instruction(dockerfile, "CMD"))
    environment = {
        "APP": str(app),
        "VENV": sys.prefix,
        "SDK": str(Path(polybus.__file__).parents[1]),
        "USER_ID": instruction(dockerfile, "USER"),
        "ENVIRONMENT": f"{instruction(dockerfile, 'ENV')} PORT={port}" + ("" if host is None else f" HOST={host}"),
    }
    command = ["unshare", *(["--net"] if host is None else []), "--mount", "--pid", "--fork", "--kill-child"]
    command += ["sh", "-c", MOUNTS, "sh", "/mnt/venv/bin/python"]
    with log.open("wb") as output:
        outer = subprocess.Popen([*command, *arguments], env=os.environ | environment, stdout=output, stderr=output)
    try:
        while not (found := psutil.Process(outer.pid).children()):
            assert outer.poll() is None
        yield Container(found[0], outer, port)
    finally:
        outer.kill()
        outer.wait(BOUND)


@pytest.mark.parametrize("options", [(), ("--minimal",)], ids=["fastapi", "minimal"])
async def test_the_image_serves_without_rights_and_answers_before_it_ends(options: tuple[str, ...], tmp_path: Path) -> None:
    app, log = tmp_path / "shop", tmp_path / "log"
    assert run(["new", str(app), *options]) == 0
    program = (app / "app.py").read_text().replace('if __name__ == "', f'{SLOW}\n\nif __name__ == "')
    program = program.replace('== ("request", "order.place")', 'in [("request", "order.place"), ("request", "order.slow")]')
    (app / "app.py").write_text(program)
    with container(app, log, "127.0.0.1") as running:
        url = f"ubre+ws://127.0.0.1:{running.port}/bus"
        async with connect(url, wait=BOUND) as bus:
            order = {"article": "soup", "pieces": 2}
            assert (await bus.request("order.place", order))["pieces"] == 2
            assert running.process.uids().effective == 10001
            if not options:
                async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{running.port}", timeout=BOUND) as client:
                    for path in ("/", "/livez", "/readyz", "/metrics"):
                        assert (await client.get(path)).status_code == 200, path
            reply = bus.request("order.slow", 0.5)
            await bus.request("order.place", order)
            running.process.send_signal(signal.SIGTERM)
            assert await reply == "done"
        status = await anyio.to_thread.run_sync(lambda: running.outer.wait(BOUND))
    assert status == 0, log.read_text()
    assert "Traceback" not in log.read_text()


async def test_the_image_listens_at_all_addresses(tmp_path: Path) -> None:
    app, log = tmp_path / "shop", tmp_path / "log"
    assert run(["new", str(app)]) == 0
    with container(app, log) as running:
        await eventually(lambda: f"serving http://0.0.0.0:{running.port}" in log.read_text())
        running.process.send_signal(signal.SIGTERM)
        assert await anyio.to_thread.run_sync(lambda: running.outer.wait(BOUND)) == 0
