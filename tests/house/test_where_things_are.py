"""The table "task, file" of CONTRIBUTING.md names files that are there."""

import re

from .sources import PACKAGE

ROOT = PACKAGE.parents[1]
ROW = re.compile(r"^\| .+? \| (.*) \|$", re.M)
PLACE = re.compile(r"`([\w./<>-]+)`")


def test_every_file_of_the_table_of_tasks_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.partition("| task | file |")[2].partition("\n\n")[0]
    rows = ROW.findall(table)
    assert len(rows) >= 15
    places = {place for row in rows for place in PLACE.findall(row) if "/" in place and "<" not in place}
    assert len(places) > 20
    missing = {place for place in places if not any((folder / place).exists() for folder in (PACKAGE, ROOT))}
    assert missing == set()
