"""The blocking twin: the same verbs for threads, over one event loop in the background.

``with polybus.sync.connect(url) as bus: bus.request("user.get", {"id": 7})``. In a `def` handler, ``ctx.bus`` is a twin that
uses the loop the handler was called from.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio.from_thread

from ._connect import connect as connect_async
from .blocking import BlockingBus, BlockingContext, BlockingSubscription

if TYPE_CHECKING:
    from .plugins import Connector

__all__ = ["BlockingBus", "BlockingContext", "BlockingSubscription", "connect"]


@contextmanager
def connect(target: str | Connector, *, backend: str = "asyncio", **options: Any) -> Iterator[BlockingBus]:
    """Open a link from a thread: ``with polybus.sync.connect("ubre+tcp://127.0.0.1:9000") as bus: ...``

    Args:
        target: As `polybus.connect`, and so are the options.
        backend: The event loop in the background: ``asyncio`` or ``trio``.

    Raises:
        ConnectFailed, Unauthorized, Forbidden, ValueError: As `polybus.connect`.
    """
    with anyio.from_thread.start_blocking_portal(backend) as portal:
        with portal.wrap_async_context_manager(connect_async(target, **options)) as bus:
            yield BlockingBus(bus, portal.call)
