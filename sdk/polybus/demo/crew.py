"""Several workers of one program, which serve one address and are one bus. ``python -m polybus.demo.crew URL WORKERS``"""

from __future__ import annotations

import os
import sys

from .. import Bus, Disconnected, Handshake, Identity, Unavailable, run
from .._core.bus import cluster, worker
from .children import leave_with_parent
from .schema import Announced, Question

USER = "x-user"
"""The header in which a page says who it is: the demo believes it."""


def make_bus() -> Bus:
    """The bus of each worker."""
    bus = Bus(cluster="auto", authenticate=_authenticate)

    @bus.handle("crew.worker")
    async def which() -> int:
        return os.getpid()

    @bus.handle("crew.announce")
    async def announce(what: Announced) -> None:
        await bus.publish("crew.news", what)

    @bus.handle("crew.ask")
    async def ask(question: Question) -> object:
        try:
            return await bus.user(question.user).request(question.subject, question.body)
        except Disconnected as error:
            raise Unavailable(f"{question.user}: {'gone amid the answer' if error.sent else 'connected nowhere'}") from error

    return bus


def _authenticate(handshake: Handshake) -> Identity:
    user = handshake.headers.get(USER)
    return Identity(user or "a visitor", key=user)


if __name__ == "__main__":
    if worker.VARIABLE not in os.environ:
        leave_with_parent()  # the workers end with this process
        os.environ.pop(cluster.VARIABLE, None)  # the demo is nobody's production
    run(make_bus(), sys.argv[1], workers=int(sys.argv[2]), drain=5.0)
