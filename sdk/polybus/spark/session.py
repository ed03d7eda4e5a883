"""Creates a Spark session with suitable settings. In local mode, it only uses loopback and serves no web pages."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

JAVA_NEEDED: Final = 17

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Environment variable with JVM options, which Spark inserts before its own configuration."""

_LOCAL: Final = {
    # By default, Spark binds to the network address and serves a web page there.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SparkUnavailable(RuntimeError):
    """Raised if Spark cannot run here. The message explains why."""


def check_java() -> str:
    """Return the path to the `java` that Spark would start.

    Raises:
        SparkUnavailable: If Java is missing or too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise SparkUnavailable(f"Spark needs Java {JAVA_NEEDED} or newer, and the PATH has no `java`: {_ADVICE}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        where = " (from JAVA_HOME)" if home else ""
        raise SparkUnavailable(f"Spark needs Java, and {java}{where} does not run: {error}; {_ADVICE}") from None
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < JAVA_NEEDED:
        seen = f"Java {found[1]}" if found else said.strip()[:80]
        raise SparkUnavailable(f"Spark needs Java {JAVA_NEEDED} or newer, and {java} is {seen}: {_ADVICE}")
    return java


@contextmanager
def unoptimized() -> Iterator[None]:
    """Start sessions without JVM code optimisation, which does not pay off in a session of a few seconds."""
    before = os.environ.get(_OPTIONS)
    os.environ[_OPTIONS] = f"-XX:TieredStopAtLevel=1 {before or ''}".rstrip()
    try:
        yield
    finally:
        del os.environ[_OPTIONS]
        os.environ.update({} if before is None else {_OPTIONS: before})


@cache
def sockets() -> dict[str, str]:
    """Return settings that connect Spark to its workers over Unix sockets in a per-user folder, if that is possible.

    Over TCP, Nagle's algorithm adds 40 to 100 ms per task (4.3).
    """
    place = tempfile.gettempdir()
    # Depending on the locale, a JVM may be unable to write other characters.
    if not hasattr(socket, "AF_UNIX") or not place.isascii() or len(place) > _LONGEST_FOLDER:
        return {}
    folder, owner = tempfile.mkdtemp(prefix="pb-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # not a forked child
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return {"spark.python.unix.domain.socket.enabled": "true", _FOLDER: folder}


def remove_after(session: SparkSession) -> None:
    """Make the session's JVM remove the folder from `sockets` on exit, because this process may be killed first."""
    folder = sockets().get(_FOLDER)
    jvm: Any = session.sparkContext._jvm
    if folder is None:
        return
    with suppress(Py4JError, TypeError):  # not a public API of Spark; `File.deleteOnExit` is, but runs too early
        jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(folder))


_FOLDER: Final = "spark.python.unix.domain.socket.dir"
_LONGEST_FOLDER: Final = 48
"""Maximum length of the folder's path. Socket paths are limited to 103 characters on macOS. Spark needs 43 of them, polybus 12.
"""
_ADVICE: Final = "on a Debian `apt-get install default-jre-headless`; elsewhere install a JRE and set JAVA_HOME"


def start_session(master: str | None = None, *, name: str = "polybus", settings: dict[str, str] | None = None) -> SparkSession:
    """Return this process's Spark session, starting one if necessary. Under `spark-submit`, the session uses the options given
    there.

    Args:
        master: For example ``local[2]`` or ``spark://host:7077``. Defaults to the `spark-submit` master, or else ``local[*]``.
            In local mode, Spark only binds to 127.0.0.1 and serves no web pages.
        settings: Additional Spark settings.

    Raises:
        SparkUnavailable: If Java is missing or too old.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    check_java()
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # otherwise spark-submit has set it
        master = "local[*]"
    builder = SparkSession.builder.appName(name)
    if master is not None:
        builder = builder.master(master)
    local = master is not None and master.startswith("local")
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.python.filterPushdown.enabled": "true",
        **(_LOCAL if local else {}),
        **(settings or {}),
    }
    for key, value in chosen.items():
        builder = builder.config(key, value)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    # Workers have to use this Python, with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder.getOrCreate()
