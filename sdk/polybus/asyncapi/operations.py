"""Operations: all that a bus, or an implementation of a contract, can be asked or told, and publishes, with their types."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias, get_origin

from attrs import frozen

from .._core.bus.bus import Bus, parts_of
from .._core.handlers.handler import Handler
from .._core.handlers.lookup import Publication
from .._core.handlers.signature import Style as HandlerStyle
from .._core.handlers.subscriber import SubscriberSpec
from .._validation import shown
from ..contracts.contract import Contract
from ..subjects import RESERVED_PREFIX

Style: TypeAlias = Literal["request", "notification", "stream", "channel", "publication"]

_STYLES: dict[HandlerStyle, Style] = {"stream": "stream", "channel": "channel"}


@frozen
class Operation:
    """One thing that can be asked or told, or is published.

    Attributes:
        subject: Or, of a publication, the pattern.
        style: How.
        takes: The type of the body; None where there is none.
        returns: The type of the answer, or of an item that comes back.
        text: The docstring.
        group: Of a subscription: each publication is for one of the group.
        running: Calls that run at once, where that is limited.
        name: The function or method.
        sent: It is a publication that the application makes.
        durable: Of a durable handler: its name, which its workers share.
    """

    subject: str | int
    style: Style
    takes: Any
    returns: Any
    text: str = ""
    group: str | None = None
    running: int | None = None
    name: str = ""
    sent: bool = False
    durable: str | None = None


@frozen
class Described:
    """A bus or a contract, and what it does.

    Attributes:
        operations: In the order of their subjects.
        text: The docstring of a contract.
        guarded: Peers are asked for permission.
    """

    operations: tuple[Operation, ...]
    text: str = ""
    guarded: bool = False

    @classmethod
    def of(cls, source: Any, prefix: str) -> Described:
        """Read a bus or a contract.

        Raises:
            TypeError: It is none, or a wrong contract, or a prefix is given for a bus.
        """
        if isinstance(source, Bus):
            if prefix:
                raise TypeError(f"prefix={prefix!r} is for a contract: the subjects of a bus have theirs")
            parts = parts_of(source)
            lookup = parts.lookup
            # Copies: in another thread the bus goes on, and may be given more.
            received = (
                *map(_handled, [*lookup.handlers.values()]),
                *(_heard(spec) for spec in [*lookup.subscribers] if spec.peers),
            )
            operations = [*received, *map(_sent, [*lookup.publications.values()])]
            return cls(_sorted(operations), guarded=parts.services.authorize is not None)
        if isinstance(get_origin(source) or source, type):
            contract = Contract.of(source)
            return cls(_sorted(_promised(contract, prefix)), contract.text)
        raise TypeError(f"{shown(source)} is neither a Bus nor a contract, which is a Protocol class")


def _sorted(operations: Iterator[Operation] | list[Operation]) -> tuple[Operation, ...]:
    ours = (one for one in operations if not str(one.subject).startswith(RESERVED_PREFIX))
    return tuple(sorted(ours, key=lambda one: (str(one.subject), one.style == "publication", one.sent, one.name)))


def _handled(handler: Handler) -> Operation:
    return Operation(
        handler.subject,
        _STYLES.get(handler.style, "request"),
        handler.takes,
        handler.returns,
        "" if handler.signature is None else handler.signature.text,
        running=None if handler.places is None else handler.places.most,
        name=handler.name,
    )


def _heard(spec: SubscriberSpec) -> Operation:
    handler = spec.handler
    text = "" if handler.signature is None else handler.signature.text
    durable = None if spec.reading is None else spec.reading.name
    return Operation(handler.subject, "publication", handler.takes, None, text, spec.group, name=handler.name, durable=durable)


def _sent(publication: Publication) -> Operation:
    subject = publication.subject
    return Operation(subject.name, "publication", subject.takes, None, publication.description, sent=True)


def _promised(contract: Contract, prefix: str) -> Iterator[Operation]:
    for subject, method in contract.subjects(prefix).items():
        yield Operation(subject, method.style, method.takes, method.returns, method.text, name=method.name)
