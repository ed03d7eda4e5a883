"""Options of protocols in the query of a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from attrs import fields


class UrlOptions:
    """Base of the adapters, which are attrs classes: `option_names` are those of their fields that a URL can say."""

    __slots__ = ()

    name: ClassVar[str]
    """The word in the URL."""
    option_names: ClassVar[tuple[str, ...]]

    @property
    def url_options(self) -> Mapping[str, str]:
        """The options that differ from the defaults, as they stand in a URL's query."""
        kind: Any = type(self)
        given = {field.name: getattr(self, field.name) for field in fields(kind) if getattr(self, field.name) != field.default}
        return {
            name: f"{given[name]:g}" if isinstance(given[name], float) else str(given[name])
            for name in self.option_names
            if name in given
        }

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """From a URL's query.

        Raises:
            ValueError: An option or its value is not known; the text lists those that are.
        """
        unknown = sorted(set(options) - set(cls.option_names))
        if unknown:
            raise ValueError(f"{cls.name}: unknown option {', '.join(unknown)}; known are {', '.join(cls.option_names)}")
        return cls(**options)


def one_of(values: Mapping[str, tuple[str, ...]]) -> Callable[[UrlOptions, Any, object], None]:
    """A validator of attrs: the value of each field is one of those under its name."""

    def check(adapter: UrlOptions, attribute: Any, value: object) -> None:
        known = values[attribute.name]
        if str(value) not in known:
            raise ValueError(f"{adapter.name}: {attribute.name}={value!r} is not known; it is one of {', '.join(known)}")

    return check
