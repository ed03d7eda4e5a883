"""Checks the build of this interpreter: exits with 0 for an optimised one, else with 1.

An optimised build (profile and link time) does the same work in two thirds of the time. Builds by version managers often lack
it.
"""

from __future__ import annotations

import sys
import sysconfig

__all__ = ["build", "is_optimised"]

_OPTION = "--enable-optimizations"
_SYSTEM = "a package of the system"


def build(arguments: str | None = None, prefix: str = sys.base_prefix) -> str:
    """Description of an interpreter's build, from its configure arguments and prefix.

    Linux distributions optimise theirs, although Debian's arguments do not show it.
    """
    if arguments is None:
        arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if sys.platform == "linux" and prefix == "/usr":
        return _SYSTEM
    if not arguments:
        return "of an unknown build"
    return f"built {'with' if _OPTION in arguments else 'without'} {_OPTION}"


def is_optimised(said: str) -> bool:
    """True if `build` reports an optimised one."""
    return said in (_SYSTEM, f"built with {_OPTION}")


if __name__ == "__main__":
    sys.exit(not is_optimised(build()))
