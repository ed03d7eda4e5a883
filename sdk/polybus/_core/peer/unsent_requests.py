"""Requests to a peer that wait for its link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attrs import define, field

from ..._util.deadlines import Deadlines

if TYPE_CHECKING:
    from ..rpc.reply import Reply


@define(eq=False)
class UnsentRequests:
    """Requests that wait in an outbox: they have no id yet, so each stands under that of its object."""

    replies: dict[int, Reply[Any]] = field(factory=dict)
    deadlines: Deadlines = field(factory=Deadlines)

    def add(self, reply: Reply[Any]) -> None:
        """Take in one more."""
        self.replies[id(reply)] = reply
        if reply.deadline < self.deadlines.until:
            self.deadlines.add(reply.deadline, id(reply))

    def remove(self, reply: Reply[Any]) -> None:
        """Take one out, which has left or has ended."""
        self.replies.pop(id(reply), None)
