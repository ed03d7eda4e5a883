"""Lets packages import names lazily."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Collection[str]], needed: Collection[str] = (), hint: str = "{}"
) -> Callable[[str], Any]:
    """Return a ``__getattr__`` function for a package, which imports the names in `homes` from their modules on first use.

    If one of the `needed` third-party packages is not installed, `hint` is the error message, with ``{}`` for its name.
    """
    modules = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name], package), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in needed:
                raise
            raise ImportError(hint.format(error.name), name=error.name) from error

    return load
