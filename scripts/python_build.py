"""Build of the interpreter that runs this: exits with 0 where it is an optimised one, else with 1.

An optimised build (profile and link time) does the same work in two thirds of the time. What a version manager compiled
is often none.
"""

from __future__ import annotations

import sys
import sysconfig

__all__ = ["build", "is_optimised"]

_OPTION = "--enable-optimizations"
_SYSTEM = "a package of the system"


def build(arguments: str | None = None, prefix: str = sys.base_prefix) -> str:
    """How an interpreter that was configured with these arguments and lies under this prefix was built.

    Linux distributions optimise theirs, and Debian's does not say so in its arguments.
    """
    if arguments is None:
        arguments = sysconfig.get_config_var("CONFIG_ARGS") or ""
    if sys.platform == "linux" and prefix == "/usr":
        return _SYSTEM
    if not arguments:
        return "of an unknown build"
    return f"built {'with' if _OPTION in arguments else 'without'} {_OPTION}"


def is_optimised(said: str) -> bool:
    """Whether `build` said so."""
    return said in (_SYSTEM, f"built with {_OPTION}")


if __name__ == "__main__":
    sys.exit(not is_optimised(build()))
