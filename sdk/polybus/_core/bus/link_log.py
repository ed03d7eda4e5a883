"""Lines of the log about a link that this bus has opened: lost, retrying, back, given up."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..._secrets import without_secrets
from ..._util.log_fields import log_fields
from ..._validation import counted, in_one_line

logger: logging.Logger = logging.getLogger("polybus.link")

_PATIENCE = 4
"""The attempt at a first connect from which on it is no longer as expected that nobody is there."""


class LinkLog:
    """Tells of one link. Of its attempts in a row the 1st, 2nd, 4th, 8th, ... are told, so that an outage of an hour is a
    handful of lines, and so is a link that comes back and is lost at once, again and again.
    """

    def __init__(self, url: str, clock: Callable[[], float]) -> None:
        self.url: str = in_one_line(without_secrets(url))
        """For people."""
        self.fields: dict[str, object] = log_fields(address=self.url, protocol=url.partition("+")[0])
        self._clock = clock
        self._since = 0.0
        self._quiet = False
        """Tells that the present outage was not told of."""

    def waiting(self, reason: str, attempt: int, delay: float) -> None:
        """Tell that there is no server yet, which `connect(wait=...)` waits for."""
        if not _is_told(attempt):
            return
        text = "no link to %s yet, attempt %d in %.1f s: %s"
        if attempt < _PATIENCE:
            logger.info(text, self.url, attempt, delay, in_one_line(reason), extra=self.fields)
        else:  # seen too where a program has not set up logging: it would seem to hang
            logger.warning(text, self.url, attempt, delay, in_one_line(reason), extra=self.fields)

    def lost(self, reason: str, attempt: int, delay: float) -> None:
        """Tell that the link is lost; from the second attempt on it had only just come back."""
        if attempt == 1:
            self._since = self._clock()
        self._quiet = not _is_told(attempt)
        if not self._quiet:
            what = "lost" if attempt == 1 else "lost again"
            reason = in_one_line(reason) or "no reason was given"
            logger.warning(
                "the link to %s is %s: %s; attempt %d in %.1f s", self.url, what, reason, attempt, delay, extra=self.fields
            )

    def retrying(self, reason: str, attempt: int, delay: float) -> None:
        """Tell that an attempt has failed."""
        if _is_told(attempt):
            self._quiet = False
            text = "the link to %s: attempt %d in %.1f s, it is down for %.0f s: %s"
            logger.info(text, self.url, attempt, delay, self._clock() - self._since, in_one_line(reason), extra=self.fields)

    def back(self, attempts: int) -> None:
        """Tell that the link is up again."""
        if not self._quiet:
            text, tried = "the link to %s is back after %s (%s)", counted(attempts, "attempt")
            logger.info(text, self.url, _span(self._clock() - self._since), tried, extra=self.fields)

    def moved(self, address: str) -> None:
        """Tell that the link goes on at another server, since its own is about to end."""
        logger.info(
            "the server of the link to %s is about to end: the link goes on at %s", self.url, address, extra=self.fields
        )

    def stays(self, reason: str, attempt: int) -> None:
        """Tell that the server is about to end, and that an attempt to go on at another one has failed."""
        if not _is_told(attempt):
            return
        text = "the server of the link to %s is about to end, and no other lets this bus in (attempt %d): %s"
        reason = in_one_line(reason) or "no reason was given"
        if attempt < _PATIENCE:
            logger.info(text, self.url, attempt, reason, extra=self.fields)
        else:
            logger.warning(text, self.url, attempt, reason, extra=self.fields)

    def gone(self, reason: str) -> None:
        """Tell that the link is lost, and cannot be dialled again."""
        logger.warning(
            "the link to %s is lost for good: %s", self.url, in_one_line(reason) or "no reason was given", extra=self.fields
        )

    def given_up(self, reason: str, attempts: int | None = None) -> None:
        """Tell that the link will not come back: after so many attempts, or since it was refused."""
        after = "" if attempts is None else f" after {counted(attempts, 'attempt')}"
        logger.warning("the link to %s is given up%s: %s", self.url, after, in_one_line(reason), extra=self.fields)


def _span(seconds: float) -> str:
    """A length of time, for people."""
    return "less than 0.1 s" if seconds < 0.1 else f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _is_told(attempt: int) -> bool:
    return attempt & (attempt - 1) == 0
