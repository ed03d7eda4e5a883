"""Prints requirements for pip: the oldest versions that pyproject.toml allows, and further requirements of the tests."""

import re
import tomllib
from pathlib import Path

_OF_TOOLS = {"all", "fuzz", "bench", "docs", "test", "dev", "spark"}


def main() -> None:
    project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    users = [*project["dependencies"], *(one for name, those in extras.items() if name not in _OF_TOOLS for one in those)]
    oldest = {name_of(one): re.sub(r">=([^,;]+)(,[^;]*)?", r"==\1", one) for one in users}
    tools = [one for one in extras["test"] if name_of(one) not in {*oldest, "polybus"}]
    print(*oldest.values(), *tools, sep="\n")


def name_of(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0]


main()
