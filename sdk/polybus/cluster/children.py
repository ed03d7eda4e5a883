"""Processes that this one starts, and their ends."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence

import anyio
from attrs import define, field


@define(eq=False)
class Child:
    """One of them."""

    pid: int
    _process: subprocess.Popen[bytes]
    ended: anyio.Event = field(factory=anyio.Event, init=False)

    @property
    def status(self) -> int:
        """Its exit status once it has ended; of a signal the negative number."""
        status = self._process.returncode
        assert status is not None
        return int(status)

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        self._process.send_signal(number)

    def wait(self) -> None:
        """Wait, and have everything else wait, for what SIGKILL has been sent to."""
        self._process.wait()
        self.ended.set()

    def reap(self) -> None:
        """See whether it has ended."""
        if self._process.poll() is not None:
            self.ended.set()


class Children:
    """All of them.

    They are started by the main thread, at once: what the kernel ends with its parent ends with the thread that started it.
    """

    def __init__(self) -> None:
        self._running: set[Child] = set()

    def start(
        self,
        command: Sequence[str],
        *,
        files: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        stdin: int = subprocess.DEVNULL,
        stderr: int | None = None,
    ) -> Child:
        """Start one, in a process group of its own: what a terminal sends to this group is for this process to pass on.

        Args:
            command: What to run.
            files: Open files that it inherits.
            environment: All of it; this process's, if not given.
            stdin: The file, or nothing.
            stderr: The file, or this process's.

        Raises:
            OSError: It cannot be started.
        """
        process = subprocess.Popen(command, stdin=stdin, stderr=stderr, pass_fds=files, env=environment, process_group=0)
        child = Child(process.pid, process)
        self._running.add(child)
        return child

    def reap(self) -> None:
        """Let those know who wait for one that has ended: on SIGCHLD."""
        for child in list(self._running):
            child.reap()
            if child.ended.is_set():
                self._running.discard(child)
