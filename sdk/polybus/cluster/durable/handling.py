"""Durable handlers: functions that are given what a store keeps."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final

import anyio
from attrs import define

from ..._core.runtime.executor import described
from ..._core.runtime.outcomes import Misfit
from ..._secrets import without_secrets
from ..._validation import in_one_line
from .delivery import again

if TYPE_CHECKING:
    from ..._core.handlers.handler import Handler
    from ..._core.runtime.executor import HandlerExecutor
    from ..._core.runtime.services import Services
    from .delivery import Delivery, Fate

_TEXT: Final = 200
"""Characters of a failure that its dead letter says."""


@define(eq=False)
class HandlerTaker:
    """Runs a handler for each publication. Implements `reader.Taker`."""

    _services: Services
    handler: Handler
    fate: Fate
    full = False

    @property
    def executor(self) -> HandlerExecutor:
        """The part that runs handlers."""
        return self._services.executor

    def take(self, delivery: Delivery) -> None:
        """Have a worker of the bus handle a publication."""
        self._services.running.workers.submit(_Job(self, delivery))

    def stop(self) -> None:
        """Take note that nothing more comes: what runs is finished."""

    async def handle(self, delivery: Delivery, scope: anyio.CancelScope | None) -> None:
        """Run the handler for a publication, and settle it."""
        hopeless = self.fate.hopeless(delivery)
        if hopeless is not None and await self.fate.is_over(delivery, *hopeless):
            return
        executor, message, name = self.executor, delivery.message, self.handler.name
        try:
            await executor.run(self.handler, message, None)
        except Misfit as error:
            self._services.counters.failed += 1
            await self.fate.bury(delivery, delivery.to.attempt, f"it does not fit {name}: {error.text}")
        except BaseException as error:
            if executor.is_own_cancellation(error, scope) or executor.must_propagate(error, scope):
                raise
            error_id = executor.publication_failed(message, error)
            if self.fate.is_last(delivery):
                await self.fate.bury(delivery, delivery.to.attempt, f"{name} failed: {_words(error)}", error_id)
            else:
                delivery.end(again(self.fate.pause(delivery)))
        else:
            delivery.done()


def _words(error: BaseException) -> str:
    """Class and text of a failure, as far as an operator needs them to know what it is. Its traceback is in the log."""
    text = in_one_line(without_secrets(described(error))).removesuffix(": ")
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


class _Job:
    """A worker's job: one stored publication."""

    __slots__ = ("_delivery", "_taker", "scope", "waited")
    ended = False
    run_plain = None

    def __init__(self, taker: HandlerTaker, delivery: Delivery) -> None:
        self._taker: HandlerTaker = taker
        self._delivery: Delivery = delivery
        self.scope: anyio.CancelScope | None = None
        self.waited: int = 0

    @property
    def function(self) -> str:
        handler = self._taker.handler
        return f"the handler {handler.name} of {handler.subject!r}"

    @property
    def party(self) -> tuple[object, object]:
        return self._taker, self._taker

    def run(self) -> Coroutine[Any, Any, None]:
        return self._run()

    async def _run(self) -> None:
        executor, delivery = self._taker.executor, self._delivery
        try:
            await self._taker.handle(delivery, self.scope)
        except BaseException as error:
            if not executor.is_own_cancellation(error, self.scope):
                executor.publication_failed(delivery.message, error)
            if executor.must_propagate(error, self.scope):
                raise
        finally:
            delivery.give_back()  # where it was cut: another worker has it at once
