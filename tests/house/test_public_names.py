"""A public class shows what its page of the reference shows, and no more: `dir()` is what an editor offers.

`tests/house/undocumented_names.txt` has the names that are there for the rooms of the package alone. It may
only become shorter: ``python -m tests.house.test_public_names`` writes it.
"""

import inspect
import re
from pathlib import Path

import polybus

TABLE = Path(__file__).with_name("undocumented_names.txt")
PAGES = (Path(__file__).parents[2] / "docs/reference/api").glob("*.md")
REFERENCE = "".join(page.read_text(encoding="utf-8") for page in PAGES)
SECTION = re.compile(r"^::: polybus\.(\w+)\n((?: .*\n)*)", re.M)
MEMBER = re.compile(r'^ +- "?(\w+)"?$', re.M)


def listed() -> dict[str, set[str]]:
    """What the reference shows of the classes of which it lists the members: of the others it shows all."""
    found = {name: set(MEMBER.findall(options)) for name, options in SECTION.findall(REFERENCE) if " members:" in options}
    for name, member in re.findall(r"^::: polybus\.(\w+)\.(\w+)$", REFERENCE, re.M):
        found.setdefault(name, set()).add(member)
    return found


def undocumented() -> set[str]:
    found = set()
    for name, shown in listed().items():
        kind = getattr(polybus, name, None)
        if inspect.isclass(kind):
            described = set(re.findall(r"^ *(\w+): ", inspect.getdoc(kind) or "", re.M))
            own = {member for member in dir(kind) if member[0] != "_" and not hasattr(tuple, member)}  # a Survey is one
            found |= {f"{name}.{member}" for member in own - shown - described}
    return found


def test_a_public_class_shows_no_name_that_its_page_does_not_show() -> None:
    allowed = set(TABLE.read_text(encoding="utf-8").split())
    assert undocumented() - allowed == set(), "document it, or begin its name with an underscore"
    assert allowed - undocumented() == set(), "good: run `python -m tests.house.test_public_names`"


if __name__ == "__main__":
    TABLE.write_text("\n".join(sorted(undocumented())) + "\n", encoding="utf-8")
