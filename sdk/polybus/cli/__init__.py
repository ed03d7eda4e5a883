"""The `polybus` command. Only this package uses typer and rich, which the ``cli`` extra installs."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..plugins.tools import end_by_sigterm

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of this process, and exit.

    The exit status is 0 for success, 1 if the peer refused or was not reachable, and 2 for wrong usage.
    """
    end_by_sigterm()  # before commands and an application are imported
    try:
        from .app import run

        status = run(sys.argv[1:] if arguments is None else list(arguments))
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in _NEEDED:
            raise
        print(f"polybus: the command needs {' and '.join(_NEEDED)}: pip install 'polybus[cli]'", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
    sys.exit(status)
