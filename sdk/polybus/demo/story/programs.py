"""The programs of the story as text: what `polybus demo` shows of them is what runs."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from textwrap import dedent

from attrs import frozen

PROGRAMS = ("plant", "desk", "gate", "van")
"""Server and client; and what brings a vehicle of another protocol to them."""


def path_of(program: str) -> Path:
    """The file of a program."""
    return Path(__file__).with_name(f"{program}.py")


@cache
def text_of(program: str) -> str:
    return path_of(program).read_text(encoding="utf-8")


@frozen
class Excerpt:
    """Lines of a program: from the first that contains a text up to the next empty one, or so many."""

    program: str
    begins: str
    count: int | None = None

    @property
    def code(self) -> str:
        """
        Raises:
            ValueError: There is no such line.
        """
        lines = text_of(self.program).splitlines()
        first = next((number for number, line in enumerate(lines) if self.begins in line), None)
        if first is None:
            raise ValueError(f"{self.program}.py has no line with {self.begins!r}")
        end = next((number for number in range(first, len(lines)) if not lines[number]), len(lines))
        return dedent("\n".join(lines[first:end][: self.count]))
