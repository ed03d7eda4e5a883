"""The programs of "Serve with several workers", as they stand there, until the signal."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import polybus.sync
from polybus import LocalProtocolError
from polybus.cluster.engine import find_server
from tests.support import BOUND, free_port

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "workers.md"
PROGRAM = re.compile(r"^```python[^\n]*\n# ([\w.]+)\n(.*?)^```$", re.M | re.S)


def test_the_service_of_the_page_is_one_bus_in_four_workers(tmp_path: Path) -> None:
    try:
        find_server()
    except LocalProtocolError as error:
        if os.environ.get("POLYBUS_CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    for name, text in PROGRAM.findall(PAGE.read_text()):
        (tmp_path / name).write_text(text.replace(":8000", ":0").replace(":8081", f":{free_port()}"))
    environment = {name: value for name, value in os.environ.items() if name != "POLYBUS_CLUSTER"}
    command = [sys.executable, "main.py"]
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().removeprefix("serving ").strip()
            with polybus.sync.connect(url) as one, polybus.sync.connect(url) as two:
                with one.subscribe("news.*") as first, two.subscribe("news.*") as second:
                    one.request("say", "hello")
                    assert [first.receive(BOUND).body, second.receive(BOUND).body] == ["hello", "hello"]
                assert two.request("user.get", {"id": 7}) == {"name": "Ann"}
            process.send_signal(signal.SIGTERM)
            assert process.wait(BOUND) == 0
        finally:
            process.kill()
