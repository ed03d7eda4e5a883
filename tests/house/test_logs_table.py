"""The list of lines in docs/reference/logs.md is that of the source."""

import re
from pathlib import Path

from .log_lines import FIELDS, LogLine, lines

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "logs.md").read_text()
SECTION = re.compile(r"^### ([\w.]+)\n(.*?)(?=^### |\Z)", re.M | re.S)
LEVEL = re.compile(r"^\*\*(DEBUG|INFO|WARNING|ERROR|as told)\*\*\n\n((?:\* .*\n)+)", re.M)
LINE = re.compile(r"^\* (.*?)(?: \*\(.*\)\*)?(?: · ([a-z_, ]+))?$", re.M)


def documented() -> list[LogLine]:
    return [
        LogLine(logger, level, text, expanded(fields))
        for logger, section in SECTION.findall(PAGE.partition("## Every line")[2])
        for level, listed in LEVEL.findall(section)
        for text, fields in LINE.findall(listed)
    ]


def expanded(words: str) -> tuple[str, ...]:
    return tuple(sorted({name for word in words.split(", ") if word for name in FIELDS.get(word, {word})}))


def test_each_line_of_the_source_is_in_the_list_and_no_other() -> None:
    assert len(lines()) > 80
    missing, gone = {*lines()} - {*documented()}, {*documented()} - {*lines()}
    assert not missing, "add to docs/reference/logs.md:\n" + "\n".join(line.row for line in sorted(missing))
    assert not gone, "take out of docs/reference/logs.md:\n" + "\n".join(line.row for line in sorted(gone))


def test_fields_have_the_same_names_everywhere_and_are_explained() -> None:
    table = PAGE.partition("## Fields")[2].partition("##")[0]
    explained = {name for row in re.findall(r"^\| (`.+?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert {field for line in lines() for field in line.fields} == explained


def test_each_logger_is_in_the_overview() -> None:
    overview = PAGE.partition("## Fields")[0]
    named = set(re.findall(r"^\| `(polybus[\w.]*)`", overview, re.M))
    assert {line.logger for line in lines()} <= named


def test_no_text_begins_with_the_name_that_the_logger_has_already() -> None:
    assert [line.text for line in lines() if line.text.startswith("polybus: ")] == []
