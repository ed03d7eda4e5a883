"""What `polybus.run` says: where it serves, once, and why it cannot."""

from __future__ import annotations

import importlib.util
import logging

import pytest

import polybus
from polybus import Bus, LocalProtocolError
from polybus._bus import runner
from polybus._bus.runner import announce

URL = "ubre+memory://run-messages"


@pytest.mark.anyio
async def test_run_in_a_running_event_loop_names_what_to_use_there() -> None:
    with pytest.raises(LocalProtocolError, match=r"runs here already: use `async with bus\.serve\(url\)"):
        polybus.run(Bus(), URL)


@pytest.mark.parametrize(
    ("missing", "options", "says"),
    [
        ("uvloop", {"uvloop": True}, r"pip install 'polybus\[uvloop\]'"),
        ("trio", {"backend": "trio"}, "pip install trio"),
    ],
)
def test_an_event_loop_that_is_not_installed_is_told_with_what_installs_it(
    missing: str, options: dict[str, object], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "find_spec", lambda name: None if name == missing else importlib.util.find_spec(name))
    with pytest.raises(ImportError, match=says):
        polybus.run(Bus(), URL, **options)  # type: ignore[arg-type]


def test_an_unknown_backend_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="asyncio or trio"):
        polybus.run(Bus(), URL, backend="twisted")


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_where_it_serves_is_said_once_in_the_log_or_on_stdout(
    level: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(level, "polybus"):
        announce(URL)
    logged = [record.getMessage() for record in caplog.records]
    printed = capsys.readouterr().out
    assert (logged, printed) == (([f"serving {URL}"], "") if level == logging.INFO else ([], f"serving {URL}\n"))
