"""The doors of a vehicle, run as a user would run them."""

import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[4] / "examples" / "vehicle" / "doors.py"
PRINTS = {
    "told no: FAILED_PRECONDITION - front_left is locked",
    "done: front_left: unlocked, 0 % open",
    "  seen: front_left: unlocked, 0 % open (CS1)",
    "done: front_left: unlocked, 50 % open",
    "  seen: front_left: unlocked, 50 % open (CS1)",
    "told no: NOT_FOUND - this vehicle has no door 'roof'",
    "a guest may only look",
}


def test_the_console_moves_doors_watches_them_and_is_told_no() -> None:
    ended = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert set(ended.stdout.splitlines()) == PRINTS
