"""Questions to nodes whether they are still there: the engine answers for those that are not."""

from __future__ import annotations

from typing import Final

from attrs import define, field

PACE: Final = 1.0
"""Seconds between two looks at what is under way."""


@define(eq=False)
class Liveness:
    """The nodes that have been asked, and have not answered yet."""

    _patience: float
    """Seconds after which a node that does not answer is taken for gone."""
    _asked: dict[str, tuple[str, float]] = field(factory=dict)
    """Token of the question and its time, by node."""
    _nodes: dict[str, str] = field(factory=dict)
    """Nodes by the token of the question."""
    _looked: float = float("-inf")
    """The time of the last look."""
    last_gone: float = float("-inf")
    """The time at which a node was last found to be gone."""

    def ask(self, node: str, token: str, now: float) -> str:
        """Note a question. Its token: that of the one which is out already, where the node may have died with it."""
        out = self._asked.get(node)
        if out is not None:
            return out[0]
        self._asked[node] = token, now
        self._nodes[token] = node
        return token

    def answered(self, token: str) -> str | None:
        """The node that a question with this token was asked; it is not out any more."""
        node = self._nodes.pop(token, None)
        if node is not None:
            del self._asked[node]
        return node

    def forget(self, node: str) -> None:
        """Ask no more about a node."""
        asked = self._asked.pop(node, None)
        if asked is not None:
            del self._nodes[asked[0]]

    def silent(self, now: float) -> list[str]:
        """The nodes that have not answered for too long.

        After a time in which this node itself was away (stopped, or its machine asleep) they have that long once more: what
        they have said meanwhile is still to be read.
        """
        away, self._looked = now - self._looked > 2 * PACE, now
        if away:
            self._asked.update({node: (token, now) for node, (token, _) in self._asked.items()})
        return [node for node, (_, since) in self._asked.items() if now - since > self._patience]
