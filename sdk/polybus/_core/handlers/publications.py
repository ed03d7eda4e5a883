"""Publications that an application says it makes: for its document, they change nothing in what it does."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from ..._validation import shown
from ...subjects import Subject


@frozen
class Publication:
    """A subject that is published.

    Attributes:
        subject: With the type of its bodies.
        description: As the docstring of a handler.
    """

    subject: Subject[Any, Any]
    description: str = ""

    def merged(self, other: Publication) -> Publication:
        """The two as one, which another module has declared too.

        Raises:
            TypeError: They are of different types.
        """
        mine, new = self.subject.takes, other.subject.takes
        if mine != new:
            raise TypeError(
                f"bus.publishes({self.subject.name!r}): it is published with {_name(mine)} already, and now with {_name(new)}: "
                f"write one type, {_name(mine)} | {_name(new)}"
            )
        return self if self.description else other


def declared(subject: Any, description: str) -> Publication:
    """Read what is to be published.

    Raises:
        TypeError: It is no subject, or one of requests.
    """
    if isinstance(subject, (str, int)) and not isinstance(subject, bool):
        subject = Subject(subject)
    if not isinstance(subject, Subject):
        raise TypeError(f"bus.publishes({shown(subject)}): a Subject, as in bus.publishes(Subject('news.today', News))")
    if subject.returns is not Any and subject.returns is not None:
        raise TypeError(
            f"bus.publishes({subject.name!r}): a publication has no answer, and this Subject has {_name(subject.returns)}: "
            "it is one of requests, which @bus.handle answers"
        )
    return Publication(subject, description)


def _name(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else shown(hint)
