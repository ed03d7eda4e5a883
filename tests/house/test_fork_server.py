"""Programs that are forks: they are what an interpreter would have become, and so are the programs that they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.loops import FULL

pytestmark = pytest.mark.skipif(FULL or sys.platform != "linux", reason="nothing is forked here")

SAYS = """
import json, os, sys
line = open("/proc/self/cmdline").read().split(chr(0))
print(json.dumps([os.getppid(), os.getpgrp() == os.getpid(), os.read(int(sys.argv[1]), 9).decode(), "fork_server" in line[-3]]))
"""
STARTS = """
import json, os, subprocess, sys
reading, writing = os.pipe()
os.write(writing, b"for two")
command = [sys.executable, "-c", sys.argv[2], str(reading)]
done = subprocess.run(command, pass_fds=[reading], process_group=0, capture_output=True, text=True, check=True)
print(os.getpid(), done.stdout, flush=True)
"""


@pytest.fixture
def reading() -> int:
    reading, writing = os.pipe()
    os.write(writing, b"for one")
    os.close(writing)
    return reading


def test_a_fork_is_a_child_with_the_files_that_it_was_given_in_a_group_of_its_own(reading: int) -> None:
    command = [sys.executable, "-c", SAYS, str(reading)]
    done = subprocess.run(command, pass_fds=[reading], process_group=0, capture_output=True, text=True, check=True)
    os.close(reading)
    assert json.loads(done.stdout) == [os.getpid(), True, "for one", True]


def test_what_a_program_with_workers_starts_is_a_fork_too_and_its_child() -> None:
    command = [sys.executable, "-c", STARTS, "workers", SAYS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    pid, _, said = done.stdout.partition(" ")
    assert json.loads(said) == [int(pid), True, "for two", True]


def test_the_server_of_such_a_program_ends_with_it(tmp_path: Path) -> None:
    script = "import os; print(open(f'/proc/self/task/{os.getpid()}/children').read())"
    done = subprocess.run([sys.executable, "-c", script, "workers"], capture_output=True, text=True, check=True)
    (server,) = map(int, done.stdout.split())
    while Path(f"/proc/{server}/stat").exists() and Path(f"/proc/{server}/stat").read_text().split()[2] != "Z":
        pass
