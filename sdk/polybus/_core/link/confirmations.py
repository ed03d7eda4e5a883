"""Questions whether the other end has handled all that was written before, on wires that have such a question."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import anyio
from attrs import define, field

from ...errors import Disconnected
from ...plugins import Confirmed, SessionFeatures

if TYPE_CHECKING:
    from ...plugins import Session


@define(eq=False)
class Confirmations:
    """The questions of one link that wait for their answer."""

    _asked: dict[Any, _Asked] = field(factory=dict)

    def ask(self, session: Session, now: float) -> _Asked | None:
        """Queue a question; None where the wire has none."""
        confirm = SessionFeatures.of(session).confirm
        if confirm is None:
            return None
        asked = self._asked[confirm(now)] = _Asked()
        return asked

    def answered(self, event: Confirmed) -> None:
        """Wake who has asked."""
        asked = self._asked.pop(event.key, None)
        if asked is not None:
            asked.refused = event.refused
            asked.over.set()

    def lost(self) -> None:
        """Wake all: the connection is gone."""
        waiting, self._asked = self._asked, {}
        for asked in waiting.values():
            asked.lost = True
            asked.over.set()


@define(eq=False)
class _Asked:
    """One question. Its wait is bounded by the life of the connection, whose heartbeat is answered behind it."""

    over: anyio.Event = field(factory=anyio.Event)
    refused: Collection[str | int] = ()
    lost: bool = False

    async def answer(self, address: str) -> Collection[str | int]:
        """Wait, and give the patterns that are refused.

        Raises:
            Disconnected: The connection is gone.
        """
        await self.over.wait()
        if self.lost:
            raise Disconnected("the connection ended before the server had answered", address, True)
        return self.refused
