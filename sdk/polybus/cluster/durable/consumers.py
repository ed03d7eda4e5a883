"""Consumers: what the engine remembers of how far a durable handler is."""

from __future__ import annotations

import datetime
import logging
from typing import TYPE_CHECKING, Any, Final

from attrs import define

from ..._validation import shown
from ...errors import LocalProtocolError
from .jetstream import NANOSECONDS, JetStream, JetStreamError, config_of

if TYPE_CHECKING:
    from ..._handlers.durable import DurableSpec, Start

logger: logging.Logger = logging.getLogger("polybus.cluster")

_NOT_FOUND: Final = 10014
_MOST: Final = 20_000
"""Publications that all workers of a durable handler may be given at once."""


@define(eq=False)
class Consumers:
    """Makes consumers, or finds them as they should be."""

    _jetstream: JetStream

    async def prepare(self, spec: DurableSpec, subject: str, pattern: str | int) -> str:
        """Make the consumer of a durable handler where there is none; gives the name of the stream.

        Args:
            subject: The subject on the wire of what it handles.
            pattern: The same as the bus has it.

        Raises:
            LocalProtocolError: No store keeps that, or the consumer is there and differs, or cannot be made.
            Disconnected, Forbidden, DeadlineExceeded: As `JetStream.ask`.
        """
        try:
            stream = await self._stream_of(subject, pattern)
            wanted = _members(spec, subject)
            there = await self._find(stream, spec.name)
            if there is None:
                there = await self._make(stream, spec, wanted)
        except JetStreamError as error:
            raise LocalProtocolError(
                f"durable={spec.name!r} of {pattern!r} cannot be made: the NATS server says: {error.text}"
            ) from None
        for member, argument in _ARGUMENTS.items():
            if there.get(member) != wanted[member]:
                raise LocalProtocolError(
                    f"durable={spec.name!r} is there already and has another {argument}: "
                    f"{_readable(member, there.get(member))}, not {_readable(member, wanted[member])}. It is "
                    f"never changed: say the same, take another name, or remove the consumer of the stream {stream!r}"
                )
        return stream

    async def _stream_of(self, subject: str, pattern: str | int) -> str:
        answer = await self._jetstream.ask("STREAM.NAMES", {"subject": subject})
        names = answer.get("streams")
        found = [str(name) for name in names] if isinstance(names, list) else []
        if len(found) != 1:
            kept = f"several stores keep parts of it ({', '.join(found)[:200]})" if found else "no store keeps it"
            raise LocalProtocolError(
                f"a durable handler of {pattern!r}: {kept}. Name one in Cluster(stores=[Store('orders', {pattern!r})])"
            )
        return found[0]

    async def _find(self, stream: str, name: str) -> dict[str, Any] | None:
        try:
            return config_of(await self._jetstream.ask(f"CONSUMER.INFO.{stream}.{name}"))
        except JetStreamError as error:
            if error.number == _NOT_FOUND:
                return None
            raise

    async def _make(self, stream: str, spec: DurableSpec, wanted: dict[str, Any]) -> dict[str, Any]:
        members = {"stream_name": stream, "config": {**wanted, **_beginning(spec.start)}}
        try:
            made = config_of(await self._jetstream.ask(f"CONSUMER.DURABLE.CREATE.{stream}.{spec.name}", members))
        except JetStreamError:
            there = await self._find(stream, spec.name)  # another node may have made it meanwhile
            if there is None:
                raise
            return there
        logger.info("the durable handler %s of the store %s is new", spec.name, stream)
        return made


def _members(spec: DurableSpec, subject: str) -> dict[str, Any]:
    return {
        "durable_name": spec.name,
        "ack_policy": "explicit",
        "ack_wait": round(spec.ack_wait * NANOSECONDS),
        "filter_subject": subject,
        "max_ack_pending": 1 if spec.ordered else _MOST,
        "max_deliver": -1,
        "max_waiting": _MOST,
    }


_ARGUMENTS: Final = {"filter_subject": "pattern", "ack_wait": "ack_wait", "max_ack_pending": "ordered"}
"""The members that a handler says, and its arguments that they come from."""


def _readable(member: str, value: Any) -> str:
    if member == "ack_wait" and isinstance(value, int):
        return f"{value / NANOSECONDS:g} s"
    if member == "max_ack_pending":
        return str(value == 1)
    return shown(value)


def _beginning(start: Start) -> dict[str, Any]:
    if isinstance(start, datetime.timedelta):
        at = datetime.datetime.now(datetime.UTC) - start
        return {"deliver_policy": "by_start_time", "opt_start_time": at.isoformat().replace("+00:00", "Z")}
    if isinstance(start, int):
        return {"deliver_policy": "by_start_sequence", "opt_start_seq": start}
    return {"deliver_policy": start}
