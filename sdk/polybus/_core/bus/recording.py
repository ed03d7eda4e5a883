"""Recording of a bus: attaches a recorder to every link for as long as a block lasts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from ..._util.cancel_scopes import to_the_end
from ..._util.own_thread import in_own_thread
from ...plugins.recording import Recorder, RecorderStats

if TYPE_CHECKING:
    from ..link.link import Link
    from ..runtime.services import Services


class Recording:
    """An async context manager: while it is entered, every frame of every link of a bus is recorded.

    Attributes:
        recorder: Writes the frames down.
    """

    def __init__(self, services: Services, recorder: Recorder) -> None:
        self._services = services
        self.recorder: Recorder = recorder

    @property
    def capture_id(self) -> str:
        """The name of all that this one records."""
        return self.recorder.capture_id

    @property
    def path(self) -> str:
        """The folder."""
        return str(self.recorder.path)

    def stats(self) -> RecorderStats:
        """Figures so far: frames written, and lost."""
        return self.recorder.stats()

    async def __aenter__(self) -> Recording:
        self.recorder.claim()
        try:
            await in_own_thread(self.recorder.open)
            self._services.recorders.append(self.recorder)
            await self._for_each_link(lambda link: link.record(self.recorder))
        except BaseException:
            await self._left()
            raise
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self._left()

    async def _left(self) -> None:
        await to_the_end(self._end)

    async def _end(self) -> None:
        if self.recorder in self._services.recorders:
            self._services.recorders.remove(self.recorder)
            await self._for_each_link(lambda link: link.unrecord(self.recorder))
        await in_own_thread(self.recorder.close)

    async def _for_each_link(self, change: Callable[[Link], None]) -> None:
        """Change links between turns of the event loop, where none of them is in the middle of a frame."""
        runtime = self._services.runtime
        if runtime is None:
            return
        done = anyio.Event()

        def now() -> None:
            try:
                for link in runtime.links:
                    change(link)
            finally:
                done.set()

        runtime.call_soon(now)
        with anyio.move_on_after(1):
            await done.wait()
