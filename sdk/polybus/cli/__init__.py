"""The command `polybus`: the only user of typer and rich (the extra ``cli``) in polybus."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..plugins.tools import end_by_sigterm

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command (default: of the command line) and exit: 0 success, 1 the peer refused or was not reachable, 2 wrong
    usage."""
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
