"""Checks paths of captures and results. It does not import Arrow, because the recorder loads Arrow only when it opens."""

from __future__ import annotations

import os

from ..plugins.tools import shown


def folder_path(path: object, name: str = "path") -> str:
    """Return the path or URI of a folder as a string.

    Raises:
        TypeError: If it is neither a string nor a path object for strings.
        ValueError: If it is empty or contains a NUL character, which no file system allows.
    """
    text = os.fspath(path) if isinstance(path, os.PathLike) else path
    if not isinstance(text, str):
        raise TypeError(f"{name}={shown(path)} must be the path of a folder, not {type(path).__name__}")
    if not text:
        raise ValueError(f"{name}='' must be the path of a folder; '.' is the current one")
    if "\0" in text:
        raise ValueError(f"{name}={shown(path)} must be the path of a folder, without a NUL character")
    return text
