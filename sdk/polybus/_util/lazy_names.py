"""Names of a package that are loaded when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Collection[str]], needed: Collection[str] = (), hint: str = "{}"
) -> Callable[[str], Any]:
    """A ``__getattr__`` for a package, for names whose modules take their time to load.

    Args:
        package: Its ``__name__``.
        homes: The names, by their modules as seen from the package.
        needed: Packages of others without which these cannot be loaded.
        hint: The text of the error where one of them is missing, with ``{}`` for its name.
    """
    modules = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        """
        Raises:
            ImportError: What it needs is not installed.
        """
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(import_module(modules[name], package), name)
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in needed:
                raise
            raise ImportError(hint.format(error.name), name=error.name) from error

    return load
