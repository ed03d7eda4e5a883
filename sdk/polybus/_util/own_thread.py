"""Blocking work in threads that anyio's limit doesn't count, such as reading small files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.to_thread

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")


async def in_own_thread(function: Callable[[*Arguments], T], *args: *Arguments, abandon_on_cancel: bool = False) -> T:
    """Call a function in a thread that doesn't count against anyio's limit.

    Otherwise all of anyio's threads could be waiting for its result, for example in `def` endpoints of FastAPI.
    """
    limiter = anyio.CapacityLimiter(1)
    return await anyio.to_thread.run_sync(function, *args, abandon_on_cancel=abandon_on_cancel, limiter=limiter)


_MOST: Final = 64 * 1024
"""Maximum size of a file in bytes. Typical files have a few hundred."""


async def read_text_files(files: Mapping[str, str]) -> Mapping[str, str]:
    """Return the contents of files by path. `files` maps paths to descriptions, which errors show instead.

    Raises `ValueError` if a file is unreadable, too large, or not in UTF-8.
    """
    if sys.platform == "emscripten":  # has no threads, and its files are in memory
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
        raise ValueError(f"{name} is larger than {_MOST} bytes, so this is the wrong file")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{name} is not UTF-8") from None
