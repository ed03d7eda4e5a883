"""Wrong arguments of `polybus.capture`: the error names the argument, what it was and what it must be."""

import math
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from polybus import Bus, Limits
from polybus.capture import (
    Capture,
    CaptureError,
    Selection,
    compact,
    export,
    info,
    make_recorder,
    recover,
    replay,
    verify,
    write_columns,
)
from tests.unit.capture.generator import traffic

_PATHS: list[tuple[Any, type[Exception]]] = [
    (None, TypeError),
    (7, TypeError),
    (b"captures", TypeError),
    ("", ValueError),
    ("captures\0", ValueError),
]


@pytest.fixture
def capture(tmp_path: Path) -> Capture:
    return Capture(traffic(3).write(tmp_path / "capture"))


@pytest.mark.parametrize(("path", "kind"), _PATHS, ids=repr)
@pytest.mark.parametrize("call", [Capture, write_columns, lambda path: recover(path, "out"), make_recorder])
def test_a_path_that_names_no_folder_is_refused(call: Callable[[Any], object], path: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"(path|record)=.* must be the path of a folder"):
        call(path)


@pytest.mark.parametrize(("path", "kind"), _PATHS, ids=repr)
@pytest.mark.parametrize("call", [export, compact, lambda capture, out: recover(capture.path, out)])
def test_a_folder_to_write_to_that_names_none_is_refused(
    call: Callable[[Capture, Any], object], path: Any, kind: type[Exception], capture: Capture
) -> None:
    with pytest.raises(kind, match="out=.* must be the path of a folder"):
        call(capture, path)


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo])
def test_a_file_is_not_called_a_folder_that_is_not_empty(
    capture: Capture, make: Callable[[Path], None], tmp_path: Path
) -> None:
    make(file := tmp_path / "file")
    with pytest.raises(CaptureError, match="file is a file: choose another path"):
        export(capture, file)


@pytest.mark.parametrize("call", [info, verify, lambda given: export(given, "out"), lambda given: compact(given, "out")])
def test_a_path_in_the_place_of_a_capture_is_refused_with_what_to_write(
    call: Callable[[Any], object], capture: Capture
) -> None:
    with pytest.raises(TypeError, match=r"capture='.* must be Capture, not str; for example Capture\('captures'\)"):
        call(capture.path)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"bodies": "no"}, TypeError, "bodies='no' must be bool"),
        ({"decode": "no"}, TypeError, "decode='no' must be bool"),
        ({"redact": lambda frame: frame}, TypeError, r"redact=.* must be a function, redact\(protocol, frame\)"),
        ({"redact": False}, TypeError, "redact=False must be a function"),
        ({"max_bytes": 1e9}, TypeError, "max_bytes=1000000000.0 must be an integer"),
        ({"max_bytes": 1}, ValueError, "max_bytes=1 must be at least 262144"),
        ({"max_age": "7d"}, TypeError, "max_age='7d' must be a number of seconds"),
        ({"max_age": timedelta(0)}, ValueError, "max_age=.* must be a timedelta or a number of seconds above 0"),
        ({"max_age": 10**400}, ValueError, "max_age=.* must be a number of seconds of at most"),
    ],
)
def test_a_recorder_names_the_option_that_is_wrong(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        make_recorder("captures", **given)


def test_one_subject_or_connection_may_be_selected_as_a_string() -> None:
    selection = Selection(subjects="orders.>", connections="c-1")
    assert (selection.subjects, selection.connections) == (("orders.>",), ("c-1",))
    assert selection.wants("orders.new")


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"start": "5"}, TypeError, "start='5' must be a datetime, or a number of seconds"),
        ({"end": timedelta(1)}, TypeError, "end=.* must be a datetime, or a number of seconds"),
        ({"start": datetime(2026, 1, 1)}, ValueError, "start=.* must have a time zone"),  # the fault
        ({"subjects": 7}, TypeError, "subjects=7 must be a list of strings"),
        ({"connections": [7]}, TypeError, r"connections=\[7\] must be a list of strings"),
    ],
)
def test_a_selection_names_the_value_that_is_wrong(given: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        Selection(**given)


@pytest.mark.parametrize(
    ("given", "kind", "text"),
    [
        ({"capture": "captures"}, TypeError, "capture='captures' must be Capture"),
        ({"speed": "2"}, TypeError, "speed='2' must be a number"),
        ({"selection": {"start": 1}}, TypeError, "selection=.* must be Selection"),
        ({"dry_run": "no"}, TypeError, "dry_run='no' must be bool"),
        ({"record": 7}, TypeError, "record=7 must be the path of a folder"),
    ],
)
async def test_a_replay_names_the_argument_that_is_wrong(
    given: dict[str, Any], kind: type[Exception], text: str, capture: Capture
) -> None:
    with pytest.raises(kind, match=text):
        await replay(**{"capture": capture, "url": "ubre+memory://nobody", **given})


async def test_limits_of_a_replay_are_those_of_its_buses(capture: Capture) -> None:
    async with Bus().serve("ubre+memory://limited"):
        replayed = await replay(capture, "ubre+memory://limited", speed=math.inf, limits=Limits(running=1))
    assert replayed.connections > 0
