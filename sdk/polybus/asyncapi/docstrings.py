"""Docstrings as documents need them: a summary, a description, and the errors that are named under "Raises"."""

from __future__ import annotations

import inspect
import re
from typing import Final

from attrs import frozen

from .. import errors
from ..errors import Code, RequestError

_SECTION: Final = re.compile(r"^(?P<title>[A-Z][a-z]+):[ \t]*\n(?P<text>(?:[ \t]+\S.*\n?|[ \t]*\n)+)", re.M)
_ENTRY: Final = re.compile(r"^(?P<names>\w[\w.]*(?:, *\w[\w.]*)*):\s*(?P<text>.*)$")
_LEFT_OUT: Final = ("Args", "Arguments", "Raises", "Returns", "Yields", "Attributes")


@frozen
class Docstring:
    """The parts of a docstring.

    Attributes:
        summary: The first sentence, or line.
        description: The rest, without what is said of parameters.
        parameters: A text of each.
        raises: A text of each code that is named.
    """

    summary: str
    description: str
    parameters: dict[str, str]
    raises: dict[Code, str]

    @classmethod
    def of(cls, text: str) -> Docstring:
        """Read a docstring in Google's style."""
        clean = inspect.cleandoc(text) + "\n"
        sections = {found["title"]: found["text"] for found in _SECTION.finditer(clean)}
        rest = _SECTION.sub(lambda found: "" if found["title"] in _LEFT_OUT else found[0], clean).strip()
        summary, _, description = rest.partition("\n\n")
        entries = _entries(sections.get("Args", sections.get("Arguments", "")))
        raises: dict[Code, str] = {}
        for name, said in _entries(sections.get("Raises", "")).items():
            if (code := code_of(name)) is not None:
                raises.setdefault(code, said)
        return cls(" ".join(summary.split()), description.strip(), entries, raises)


def code_of(name: str) -> Code | None:
    """The code of an error's class, as ``NotFound``, or of a code's own name; None of other errors."""
    name = name.rpartition(".")[2]
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, RequestError) and kind is not RequestError:
        code: Code | None = getattr(kind, "default_code", None)
        return code
    return Code.__members__.get(name)


def _entries(section: str) -> dict[str, str]:
    """The entries of a section; a line that is further in goes on with the one before."""
    entries: dict[str, str] = {}
    names: list[str] = []
    for line in inspect.cleandoc(section).splitlines():
        if (entry := _ENTRY.match(line)) is not None:
            names = [name.strip() for name in entry["names"].split(",")]
            entries |= dict.fromkeys(names, entry["text"])
        else:
            for name in names:
                entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries
