"""`polybus stream`: items as lines."""

from __future__ import annotations

import json
import signal
from typing import Literal

import pytest

from polybus import DeadlineExceeded
from polybus.cli.app import run
from polybus.cli.problems import describe
from tests.unit.cli.support import next_line, one_line, started


def test_items_are_lines_of_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "count", "3"]) == 0
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == [{"number": number} for number in range(3)]


def test_no_more_items_are_read_than_are_asked_for(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "count", "100000", "--count", "2"]) == 0
    assert capsys.readouterr().out.count("\n") == 2


def test_a_stream_that_fails_is_status_1_after_its_items(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "count", "2"]) == 1
    out, err = capsys.readouterr()
    assert out.count("\n") == 2 and "there is no third" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "subject", "says"),
    [("request", "count", "use polybus stream"), ("stream", "greet", "use polybus request")],
)
def test_the_wrong_one_of_the_two_names_the_other(
    command: str, subject: str, says: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, text = one_line(capsys, command, url, subject, "1" if subject == "count" else '"Ann"')
    assert status == 1 and says in text


def test_a_stream_that_takes_too_long_is_status_1(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["stream", url, "tick", "--timeout", "0.2"]) == 1
    out, err = capsys.readouterr()
    assert out == "1\n" and "--timeout" in err


@pytest.mark.parametrize("where", ["local", "remote"])
def test_whoever_says_first_that_the_time_is_over_the_option_is_named(where: Literal["local", "remote"]) -> None:
    text, status = describe(DeadlineExceeded("tick", 0.2, where, "the deadline passed" if where == "remote" else ""))
    assert status == 1 and "--timeout" in text


def test_ctrl_c_is_the_orderly_end_of_a_stream(url: str) -> None:
    with started("stream", url, "tick") as process:
        assert next_line(process) == "1"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
