"""Runs a command and kills it when the parent exits: ``guard.py PARENT MODE COMMAND ...``.

* ``signal`` (Linux): asks the kernel to kill the command when PARENT exits, then execs the command.
* ``pipe``: starts the command as a child, and kills it when standard input closes.

The interpreter runs this file only, without importing the package.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import Any

PDEATHSIG = 1


def main(parent: int, mode: str, command: list[str]) -> None:
    if mode == "signal":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # the parent exited before prctl
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
