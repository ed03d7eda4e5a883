"""Processes beside this one: interpreters that find the same modules, and whose work is not known to a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import suppress
from typing import Final

_PROGRAM: Final = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from {} import main; main()"


def possible() -> bool:
    """True where a process can be begun, on this platform and from this program: one frozen file has no interpreter."""
    return os.name == "posix" and sys.platform != "emscripten" and bool(sys.executable) and not getattr(sys, "frozen", False)


def begin_interpreter(module: str, *arguments: str, stdin: int, stdout: int) -> subprocess.Popen[bytes]:
    """Begin a process that calls the function `main` of a module.

    There `sys.argv` has this process's number and the arguments, from the second on. Files are given as to `subprocess.Popen`.
    Ctrl-C is not for it: it ends when this one does, or says so.

    Raises:
        OSError: It cannot be begun.
    """
    command = [sys.executable, "-I", "-c", _PROGRAM.format(module), json.dumps([str(one) for one in sys.path])]
    # Where there is no standard error, the first file that is opened there would be taken for it.
    errors = None if _is_open(2) else subprocess.DEVNULL
    command += [str(os.getpid()), *arguments]
    return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=errors, start_new_session=True)


def _is_open(file: int) -> bool:
    with suppress(OSError):
        os.fstat(file)
        return True
    return False
