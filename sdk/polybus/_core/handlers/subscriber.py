"""Functions registered by `on`: their queue and its policy for overflow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, get_args

from msgspec import Struct

from ..._validation import check_count, shown
from ...plugins.registry import make_extension
from .handler import Handler

if TYPE_CHECKING:
    from ...plugins.extensions import Reading

WhenFull: TypeAlias = Literal["block", "drop_oldest", "drop_newest", "latest"]
"""Policies for a publication that finds the queue full.

``drop_oldest`` and ``drop_newest`` drop one; ``latest`` drops an older one of the same subject, if any. ``block`` makes
publishers of this process wait; up to `Limits.queue_bytes` from links wait beyond the queue, then a subscription ends with
`SlowConsumer`, and an `on` handler loses its oldest. Neither affects a link or another reader.
"""


_GROUP: Final = re.compile(r"(?=.{1,100}\Z)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


class SubscriberSpec(Struct, frozen=True):
    handler: Handler
    queue: int | None
    """None: as many as fit into `Limits.queue_bytes`."""
    when_full: WhenFull
    concurrency: int
    group: str | None = None
    reading: Reading | None = None
    """None for live publications."""
    peers: bool = True
    """False: only publications of its own bus."""


def reading_of(
    durable: Any,
    retry: Any,
    ack_wait: Any,
    start: Any,
    ordered: Any,
    *,
    group: Any = None,
    concurrency: int = 1,
    of_handler: tuple[int | None, str] | None = None,
) -> Reading | None:
    """Make the reading of stored messages for `on` or `subscribe`; None for live ones.

    Args:
        of_handler: Its `queue` and `when_full`; None for a subscription.

    Raises:
        TypeError, ValueError: An argument is invalid, or does not go with another one.
    """
    if durable is None and retry is None and ack_wait is None and start is None and not ordered:
        return None
    made: Reading | None = make_extension("reading", durable, retry, ack_wait, start, ordered, group, concurrency, of_handler)
    return made


def check_group(group: object) -> None:
    if group is None:
        return
    if not isinstance(group, str):
        raise TypeError(f"group={shown(group)}: the name of a group, for example group='billing', not {type(group).__name__}")
    if not _GROUP.fullmatch(group):
        raise ValueError(
            f"group={group!r:.60}: 1 to 100 letters, digits, '-', '_' or '.', with no dot at an end or two together"
        )


def check_peers(peers: object, group: str | None, durable: str | None) -> None:
    if type(peers) is not bool:
        raise TypeError(f"peers={shown(peers)}: True or False, not {type(peers).__name__}")
    if not peers and (group is not None or durable is not None):
        given = f"group={group!r}" if group is not None else f"durable={durable!r}"
        raise TypeError(
            f"peers=False and {given}: publications that an engine stores, or shares among the members of a group, do not name "
            "their publisher; leave one of them out, and decide with Bus(authorize=...) what peers publish"
        )


def check_queue(queue: int | None, when_full: str) -> None:
    if queue is not None:
        check_count(queue, "queue")
    if when_full not in (policies := get_args(WhenFull)):
        raise ValueError(f"when_full={when_full!r}: one of {', '.join(policies)}")
