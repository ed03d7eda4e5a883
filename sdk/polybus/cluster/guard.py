"""A program that starts another one, which does not outlive the process that asked: ``guard.py PARENT MODE COMMAND ...``.

* ``signal`` (Linux): the kernel is told to end it with its parent, then it takes this program's place.
* ``pipe``: it is a child of this program, which ends it when its own standard input has come to its end.

Run as a file, by an interpreter that loads nothing of the package.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

PDEATHSIG = 1


def main(parent: int, mode: str, command: list[str]) -> None:
    """Start the command."""
    if mode == "signal":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it has ended before that
            sys.exit(1)
        os.execv(command[0], command)
    child = os.spawnv(os.P_NOWAIT, command[0], command)

    def pass_on(number: int, frame: Any) -> None:
        os.kill(child, number)

    signal.signal(signal.SIGTERM, pass_on)
    threading.Thread(target=_end_with_input, args=(child,), daemon=True).start()
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(code if code >= 0 else 128 - code)


def _end_with_input(child: int) -> None:
    while os.read(0, 4096):
        pass
    os.kill(child, signal.SIGKILL)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3:])
