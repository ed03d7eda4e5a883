"""The engine that is Spark, for a command: its session, whose JVM writes to a file, and what went wrong in one line."""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from .. import spark
from .problems import PeerError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LITTLE: Final = 32 << 20
"""Bytes of a capture, about a million frames, up to which the JVM's code is not optimized."""


@contextmanager
def named_failures() -> Iterator[None]:
    """What Spark says of a failure becomes a PeerError with its cause, and KeyboardInterrupt where it is the user's doing."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with _quiet():
            yield
    except (PySparkException, Py4JError) as error:
        if _is_interrupted(error):
            raise KeyboardInterrupt from error
        raise PeerError(_reason(str(error))) from error


def _is_interrupted(error: BaseException | None) -> bool:
    """True for an error of py4j while it cancelled a job that the user has interrupted."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__context__
    return error is not None


_PYTHONS: Final = re.compile(r"(?!org\.|java\.|scala\.)[A-Za-z_][\w.]*(?:Error|Exception|Warning): ")


def _reason(text: str) -> str:
    """The error of a task, out of Spark's account of it: ours, Python's, or the place in Java where it began."""
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["Spark failed, and does not say why"]
    said = [line.partition(": ")[2] for line in lines if line.startswith("polybus.")]
    python = [line for line in lines if _PYTHONS.match(line)]
    return (said or python or _causes(lines) or lines[:1])[-1]


def _why(lines: Sequence[str]) -> str:
    """Why Spark did not start, out of what its JVM wrote, and after that what Python says."""
    errors = [line for line in lines if "Exception" in line or "ERROR" in line]
    return (_causes(lines) or errors or lines[-1:] or ["nobody says why"])[0].strip(": ")


def _causes(lines: Sequence[str]) -> list[str]:
    return [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]


@contextmanager
def _quiet() -> Iterator[None]:
    """py4j logs what interrupts it, with all of its stack: here that is the user."""
    nobody, root = logging.NullHandler(), logging.getLogger()
    root.addHandler(nobody)
    try:
        yield
    finally:
        root.removeHandler(nobody)


@contextmanager
def running_session(master: str, *, brief: bool) -> Iterator[SparkSession]:
    """A session whose JVM writes to a file, which tells why it did not start (PeerError); `brief` is one for seconds."""
    from pyspark.sql import SparkSession

    from ..spark.session import remove_after, sockets, unoptimized

    with tempfile.TemporaryFile() as log:
        running = SparkSession.getActiveSession()
        before = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            local = master.startswith("local")
            with unoptimized() if brief and local else nullcontext():
                session = spark.start_session(master, settings=sockets() if local else {})
            session.sparkContext.setLogLevel("ERROR")
            if local:
                remove_after(session)
        except spark.SparkUnavailable as error:
            raise PeerError(str(error)) from None
        except Exception as error:
            log.seek(0)
            lines = log.read().decode(errors="replace").strip().splitlines()
            raise PeerError(f"Spark did not start on {master}: {_why([*lines, *str(error).splitlines()])[:300]}") from None
        finally:
            os.dup2(before, 2)
            os.close(before)
        try:
            yield session
        finally:
            if session is not running:
                session.stop()
