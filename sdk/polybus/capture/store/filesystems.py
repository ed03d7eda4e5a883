"""File systems for paths and URIs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

import pyarrow as pa
import pyarrow.fs as pafs

from ..errors import CaptureError

AnyPath: TypeAlias = str | os.PathLike[str]
_LONGEST = 300
"""Maximum characters of a library's error message. Without Hadoop, the message lists every searched location."""
_HADOOP = (
    "pyarrow finds no Hadoop client: set JAVA_HOME, HADOOP_HOME and CLASSPATH (`hadoop classpath --glob`) as its pages say"
)


@contextmanager
def naming(path: AnyPath) -> Iterator[None]:
    """Add the path to any `OSError` that has no file name, such as "no space left"."""
    try:
        yield
    except OSError as error:
        if error.errno is None or error.filename is not None:
            raise
        raise OSError(error.errno, os.strerror(error.errno), os.fspath(path)) from error


def find_filesystem(path: str) -> tuple[pafs.FileSystem, str]:
    """Return the file system of a path or URI, and the path within it. Raises `CaptureError` if it is unreachable."""
    if "://" not in path:
        return pafs.LocalFileSystem(), os.path.abspath(path)
    try:
        found: tuple[pafs.FileSystem, str] = pafs.FileSystem.from_uri(path.replace("s3a://", "s3://", 1).replace(" ", "%20"))
    except (pa.ArrowException, OSError) as error:
        text = str(error)
        if "libjvm" in text or "libhdfs" in text:
            text = _HADOOP
        raise CaptureError(f"{path}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '...'}") from error
    return found
