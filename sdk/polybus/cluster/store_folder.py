"""The folder in which the engine of one machine keeps stores: there, writable, and of one engine at a time."""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .._core.bus.cluster import VARIABLE
from ..errors import LocalProtocolError

logger: logging.Logger = logging.getLogger("polybus.cluster")

STORE: Final = "POLYBUS_STORE"
"""The environment variable that names it."""


@contextmanager
def held(named: str) -> Iterator[Path | None]:
    """Make the folder where there is none, and keep the engines of other programs out of it; None where none is named.

    The lock is that of a process, and ends with it, however that ends.

    Raises:
        LocalProtocolError: It cannot be made or written to, or another engine keeps its stores there.
    """
    if not named:
        yield None
        return
    folder = Path(named).absolute()
    lock = _open(folder)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LocalProtocolError(
                f"{STORE}={folder}: the engine of another program keeps its stores there, and two would destroy them: name "
                f"another folder, or have both use one engine, {VARIABLE}=nats+tcp://TOKEN@HOST:4222/NAME"
            ) from None
        except OSError:
            pass  # a shared folder that knows no locks
        logger.info("stores are kept in %s", folder)
        yield folder
    finally:
        os.close(lock)


def _open(folder: Path) -> int:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        why = "it is no folder" if isinstance(error, FileExistsError) else error.strerror or str(error)
        raise _unusable(folder, why) from None
    if not os.access(folder, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
        os.close(lock)
        raise _unusable(folder, "it cannot be written to")
    return lock


def _unusable(folder: Path, why: str) -> LocalProtocolError:
    return LocalProtocolError(
        f"{STORE}={folder}: stores cannot be kept there: {why}; name a folder that this user may write to"
    )
