"""A thread for polybus's own blocking work, such as opening a file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


async def in_own_thread(function: Callable[[*Arguments], T], *args: *Arguments, abandon_on_cancel: bool = False) -> T:
    """Call a function in a thread outside anyio's limit: all of anyio's threads may be waiting for its result, for example in
    `def` endpoints of FastAPI."""
    limiter = anyio.CapacityLimiter(1)
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)


_MOST: Final = 64 * 1024
"""Bytes of a file; the expected files have some hundreds."""


async def read_text_files(files: Mapping[str, str]) -> Mapping[str, str]:
    """Read files; returns their texts by path.

    Args:
        files: Names for people by path: errors do not show the paths.

    Raises:
        ValueError: A file cannot be read, is not text, or is too large.
    """
    if sys.platform == "emscripten":  # no threads; files are in memory
        return _read_all(files)
    return await in_own_thread(_read_all, files, abandon_on_cancel=True)


def _read_all(files: Mapping[str, str]) -> Mapping[str, str]:
    return {path: _read(path, name) for path, name in files.items()}


def _read(path: str, name: str) -> str:
    try:
        with open(path, "rb") as file:
            data = file.read(_MOST + 1)
    except OSError as error:
        raise ValueError(f"{name} cannot be read: {error.strerror or error}") from None
    except ValueError:  # a NUL in the path
        raise ValueError(f"{name} is not the path of a file") from None
    if len(data) > _MOST:
        raise ValueError(f"{name} is larger than {_MOST} bytes, so it is something else")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not text") from None
