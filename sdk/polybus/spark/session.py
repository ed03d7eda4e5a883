"""A Spark session that fits: on one machine nothing but loopback and no web pages, and clear words where there is no Java."""

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
"""The oldest Java that Spark 4 runs on."""

_OPTIONS: Final = "SPARK_SUBMIT_OPTS"
"""Options of the JVM that Spark places before those of its configuration, so that the latter hold."""

_LOCAL: Final = {
    # Spark takes the address of the network otherwise, and serves a page about itself there.
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


class SparkUnavailable(RuntimeError):
    """Spark cannot run here; the text says what is missing."""


def check_java() -> str:
    """The Java that Spark would start.

    Returns:
        Its path.

    Raises:
        SparkUnavailable: There is none, or it is too old.
    """
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None:
        raise SparkUnavailable(f"Spark needs Java {JAVA_NEEDED} or newer, and there is no `java` on the PATH: {_ADVICE}")
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
    """A session that is started meanwhile works for seconds only: to optimize the JVM's code costs more then than it brings."""
    before = os.environ.get(_OPTIONS)
    os.environ[_OPTIONS] = f"-XX:TieredStopAtLevel=1 {before or ''}".rstrip()
    try:
        yield
    finally:
        del os.environ[_OPTIONS]
        os.environ.update({} if before is None else {_OPTIONS: before})


@cache
def sockets() -> dict[str, str]:
    """Settings by which Spark talks to its Python workers over Unix sockets, in a folder that only this user may look into.

    There are none where there cannot be such sockets.

    Over TCP it writes in pieces for which Nagle's algorithm waits: 40 to 100 ms with each task (4.3). It is not done for
    everybody since a worker may then print a `BrokenPipeError` when the session ends, which means nothing.
    """
    place = tempfile.gettempdir()
    # Other letters a JVM may not be able to write, as the locale is.
    if not hasattr(socket, "AF_UNIX") or not place.isascii() or len(place) > _LONGEST_FOLDER:
        return {}
    folder, owner = tempfile.mkdtemp(prefix="pb-"), os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # and not a child that was forked
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return {"spark.python.unix.domain.socket.enabled": "true", _FOLDER: folder}


def remove_after(session: SparkSession) -> None:
    """Have the JVM of a session remove the folder of `sockets` at its end: this process may be killed, and cannot."""
    folder = sockets().get(_FOLDER)
    jvm: Any = session.sparkContext._jvm
    if folder is None:
        return
    with suppress(Py4JError, TypeError):  # no part of what Spark promises, as `File.deleteOnExit` is: but that comes too early
        jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(folder))


_FOLDER: Final = "spark.python.unix.domain.socket.dir"
_LONGEST_FOLDER: Final = 48
"""Letters: the name of a socket has 103 at most (macOS), of which Spark takes 43 and we 12."""
_ADVICE: Final = "on a Debian `apt-get install default-jre-headless`; elsewhere install a JRE and set JAVA_HOME"


def start_session(master: str | None = None, *, name: str = "polybus", settings: dict[str, str] | None = None) -> SparkSession:
    """The session of this process, started if there is none; under `spark-submit` the one that was asked for there.

    Args:
        master: ``local[2]``, ``spark://host:7077``, ...; when None what spark-submit says, else ``local[*]``. In local mode
            Spark binds to 127.0.0.1 only and shows no pages.
        settings: Further settings of Spark.

    Raises:
        SparkUnavailable: Java is missing, or too old.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    check_java()
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:  # else spark-submit has said it
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
    # Its workers are to be this Python, with the same packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    return builder.getOrCreate()
