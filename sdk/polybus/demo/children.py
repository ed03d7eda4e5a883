"""Runs one of the demo's programs, and exits with its parent::

python -m polybus.demo.children plant ubre+ws://127.0.0.1:0/bus
"""

import os
import runpy
import sys
import threading

from ..plugins.tools import exit_at_once


def leave_with_parent() -> None:
    """Exit when stdin closes, which also happens if the parent was killed."""

    def watch() -> None:
        # Not through sys.stdin: its lock, held by a daemon thread, would abort the interpreter's shutdown.
        while os.read(0, 4096):
            pass
        exit_at_once(3)

    threading.Thread(target=watch, daemon=True, name="leave with parent").start()


if __name__ == "__main__":
    leave_with_parent()
    runpy.run_module(f"polybus.demo.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
