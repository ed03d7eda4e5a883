"""Protocol options in the query of a URL."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

from attrs import field, fields


class UrlOptions:
    """Base of the adapters, which are attrs classes. `option_names` are the fields that a URL may set."""

    __slots__ = ()

    name: ClassVar[str]
    option_names: ClassVar[tuple[str, ...]]

    @property
    def url_options(self) -> Mapping[str, str]:
        """Return the options that differ from the defaults, as written in the query of a URL."""
        kind: Any = type(self)
        given = {one.name: getattr(self, one.name) for one in fields(kind) if getattr(self, one.name) != one.default}
        return {
            name: f"{given[name]:g}" if isinstance(given[name], float) else str(given[name])
            for name in self.option_names
            if name in given
        }

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Create an adapter from the query of a URL.

        Raises:
            ValueError: An option or value is unknown. The error text lists the known ones.
        """
        unknown = sorted(set(options) - set(cls.option_names))
        if unknown:
            raise ValueError(f"{cls.name}: unknown option {', '.join(unknown)}; known are {', '.join(cls.option_names)}")
        return cls(**options)


def choice(*values: str) -> Any:
    """Return a field that accepts one of these values. The first is the default."""
    return field(default=values[0], validator=one_of(*values))


def one_of(*values: str) -> Callable[[UrlOptions, Any, object], None]:
    """Return an attrs validator, which checks that the value is one of these when converted to a string."""

    def check(adapter: UrlOptions, attribute: Any, value: object) -> None:
        if str(value) not in values:
            raise ValueError(f"{adapter.name}: {attribute.name}={value!r} is not known; it is one of {', '.join(values)}")

    return check
