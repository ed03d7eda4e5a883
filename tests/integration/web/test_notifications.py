"""The notifications example: a program and a browser of one user, tokens that end, and what was said in between."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

import polybus.sync
from polybus import Forbidden
from tests.integration.web.support import Program
from tests.support import BOUND

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "notifications"


class Site(Program):
    def __init__(self, seconds: float) -> None:
        super().__init__(EXAMPLE / "app.py", PORT="0", TOKEN_SECONDS=str(seconds))
        self.port = urlsplit(self.site).port
        self.http = httpx.Client(base_url=self.site, timeout=BOUND)

    def notify(self, user: str, text: str) -> int:
        """How many tabs were reached."""
        tabs: int = self.http.post(f"/notify/{user}", json=text).json()["tabs"]
        return tabs

    def stop(self) -> None:
        self.http.close()
        self.kill()


@pytest.fixture
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    running = Site(getattr(request, "param", 1800))
    yield running
    running.stop()


@pytest.fixture
def client(site: Site) -> Iterator[Any]:
    command = [sys.executable, str(EXAMPLE / "client.py"), f"http://127.0.0.1:{site.port}", "ann"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        process.kill()


def test_a_user_is_told_what_she_has_missed_and_what_comes_and_nobody_else_is(site: Site, client: Any) -> None:
    assert site.notify("ben", "not for ann") == 0
    assert site.notify("ann", "your parcel is here") == 1
    assert client.stdout.readline() == "1: your parcel is here\n"
    with polybus.sync.connect(f"ubre+ws://127.0.0.1:{site.port}/bus", headers=site_headers(site, "ann")) as tab:
        assert [one["text"] for one in tab.request("notifications.since", 0)] == ["your parcel is here"]
        assert site.notify("ann", "and another") == 2
        with pytest.raises(Forbidden):
            tab.request("something.else")
    assert client.stdout.readline() == "2: and another\n"
    client.send_signal(signal.SIGINT)
    assert client.wait(BOUND) == 0


def site_headers(site: Site, user: str) -> dict[str, str]:
    return {"authorization": f"Bearer {site.http.post(f'/login/{user}').json()['token']}"}


@pytest.mark.parametrize("site", [2.0], indirect=True)
def test_a_program_goes_on_with_a_new_token_when_the_old_one_has_expired_and_misses_nothing(site: Site, client: Any) -> None:
    told = 0
    while sum("/login/ann" in line for line in site.lines) < 4:  # so often a token has ended and a new one has been fetched
        site.notify("ann", "news")
        told += 1
        assert client.stdout.readline() == f"{told}: news\n"
