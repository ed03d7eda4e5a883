"""A cluster that is cut in two, by network namespaces: Linux, where those may be made."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import BOUND

ROOT = Path(__file__).parents[3]
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net"]


def possible() -> bool:
    """Networks can be made, and joined."""
    if not all(shutil.which(name) for name in ("unshare", "nsenter", "ip")):
        return False
    script = "ip link add name cut type veth peer name uncut && ip address add 192.0.2.1/30 dev cut"
    return subprocess.run([*NAMESPACE, "sh", "-c", script], capture_output=True, timeout=BOUND, check=False).returncode == 0


@pytest.mark.timeout(240)
@pytest.mark.parametrize("what", ["node", "engine"])
def test_what_is_cut_off_is_given_up_and_is_one_with_the_others_again_afterwards(what: str) -> None:
    if not possible():
        pytest.skip("network namespaces and veth are not to be had here")
    command = [*NAMESPACE, sys.executable, "-m", "tests.integration.processes.partition", what]
    environment = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-4000:]
