"""The durable handlers of a bus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from attrs import define, field

from .pull import Pull
from .reader import DurableReader

if TYPE_CHECKING:
    from ..._core.services import Services
    from ..._handlers.subscriber import SubscriberSpec
    from ..._peer.peer import Peer
    from ...message import Message
    from ...plugins import ToReader
    from .consumers import Consumers
    from .dead_letters import DeadLetters


@define(eq=False)
class DurableReaders:
    """The durable handlers of a bus while it is entered. Implements `_bus.cluster.DurablePort`."""

    _services: Services
    _published: Callable[[str | int], str]
    _consumers: Consumers
    _dead_letters: DeadLetters
    _cluster: Callable[[], Peer]
    _readers: dict[int, DurableReader] = field(factory=dict, init=False)
    _begun: bool = field(default=False, init=False)

    @property
    def busy(self) -> bool:
        """True while stored publications are being handled."""
        return any(reader.busy for reader in self._readers.values())

    async def prepare(self, specs: Iterable[SubscriberSpec]) -> None:
        """Make the consumers of durable handlers where there are none.

        Raises:
            BusError: One cannot be made, or the store of dead letters.
        """
        for spec in specs:
            if spec.durable is None:
                continue
            if not self._readers:
                await self._dead_letters.prepare()
            number = len(self._readers) + 1
            published, pull = self._published(spec.handler.subject), Pull(spec.concurrency)
            reader = DurableReader(
                self._services, spec.handler, spec.durable, number, published, self._consumers, self._dead_letters, pull
            )
            await reader.prepare()
            self._readers[number] = reader

    def begin(self) -> None:
        """Begin to take what is stored, now that the bus is ready."""
        for reader in self._readers.values():
            reader.begin(self._cluster())
            if not self._begun:
                self._services.running.spawn(reader.run)
        self._begun = True

    def up(self) -> None:
        """Go on: the link to the engine is back."""
        if self._begun and not self._services.leaving:
            for reader in self._readers.values():
                reader.up(self._cluster())

    def down(self) -> None:
        """Wait: the link to the engine is down."""
        for reader in self._readers.values():
            reader.down()

    def withdraw(self) -> None:
        """Take nothing more."""
        for reader in self._readers.values():
            reader.withdraw()

    def receive(self, message: Message, to: ToReader) -> None:
        """Take what has come for one of them."""
        reader = self._readers.get(to.reader)
        if reader is not None:
            reader.receive(message, to)
