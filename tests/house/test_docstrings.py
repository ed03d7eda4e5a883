"""A docstring is parsed at once: it begins with its noun or its verb."""

import re

from .sources import PACKAGE, SOURCES

RIDDLE = re.compile(r'^ *"""((What|Who|Whose|Whether|Where|When|How|Those|Which)\b.*)', re.MULTILINE)


def test_no_docstring_begins_as_a_riddle() -> None:
    found = [f"{path.relative_to(PACKAGE)}: {riddle[1]}" for path in SOURCES for riddle in RIDDLE.finditer(path.read_text())]
    assert found == []


def test_the_search_sees_a_riddle() -> None:
    assert RIDDLE.search('    """What it does."""')
    assert not RIDDLE.search('    """Whatsoever it does."""')
