"""Storage of tables and manifests: a folder on this machine, or any place that `pyarrow.fs` reaches."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pyarrow.fs as pafs
import pyarrow.parquet as pq

from polybus.capture.errors import CaptureError
from polybus.capture.store.filesystems import AnyPath, find_filesystem, naming
from polybus.capture.store.segments import lock

from ..capture.store.compute import pc


def absolute(path: str) -> str:
    """As a worker, whose folder may be another, finds it."""
    return path if "://" in path else os.path.abspath(path)


def _within(path: str) -> str:
    if path.startswith("/") or ".." in path.split("/"):
        raise CaptureError(f"{path!r:.200} leads out of the folder of results")
    return path


class Storage:
    """A folder here, or at a URI (``hdfs://...``, ``s3://...``, ``s3a://...``).

    Raises:
        CaptureError: The URI is not understood, or nothing there answers.
        OSError: Of its methods: that was not possible.
    """

    def __init__(self, path: AnyPath) -> None:
        given = os.fspath(path)
        self.filesystem: Any
        self.filesystem, self._root = find_filesystem(given)
        self.local: bool = isinstance(self.filesystem, pafs.LocalFileSystem)
        # Hadoop's name for what pyarrow knows as s3, whose options come after a question mark.
        plain = given.partition("?")[0].rstrip("/").replace("s3://", "s3a://", 1)
        self._for_spark = f"file://{self._root}" if self.local else plain

    def inside(self, path: str) -> str:
        """A path of this storage for `pyarrow`.

        Raises:
            CaptureError: It leads out of it.
        """
        return f"{self._root}/{_within(path)}" if path else self._root

    def for_spark(self, path: str) -> str:
        """The same for Spark."""
        return f"{self._for_spark}/{_within(path)}" if path else self._for_spark

    def to_read(self, path: str) -> str:
        """The same where Spark takes patterns: what would be one in the name of a folder is none."""
        return re.sub(r"([\\\[\]{}*?])", r"\\\1", self.for_spark(path))

    @contextmanager
    def alone(self, waits: Callable[[], None]) -> Iterator[None]:
        """Keep other runs out that ask for it, while this process lives; `waits` is called where another one holds it.

        Only of folders on this machine, and not on Windows.
        """
        with naming(self._root), ExitStack() as stack:
            if self.local and os.name != "nt":
                self.filesystem.create_dir(self._root, recursive=True)
                folder = os.open(self._root, os.O_RDONLY)
                stack.callback(os.close, folder)
                if lock(folder) is False:
                    waits()
                    lock(folder, wait=True)
            yield

    def files(self, path: str) -> list[str]:
        """All files beneath a folder, relative to the root; none where there is no such folder."""
        found = self.filesystem.get_file_info(pafs.FileSelector(self.inside(path), allow_not_found=True, recursive=True))
        prefix = len(self._root) + 1
        return sorted(info.path[prefix:] for info in found if info.type == pafs.FileType.File)

    def rows(self, path: str) -> int:
        """Number of rows of a Parquet file."""
        return int(pq.read_metadata(self.inside(path), filesystem=self.filesystem).num_rows)

    def values(self, path: str, column: str) -> set[Any]:
        """Values of a column of a Parquet file."""
        with pq.ParquetFile(self.inside(path), filesystem=self.filesystem) as file:
            return {value for rows in file.iter_batches(columns=[column]) for value in pc.unique(rows.column(0)).to_pylist()}

    def names(self) -> list[str]:
        """Names at the root.

        Raises:
            CaptureError: It is a file.
        """
        if self.filesystem.get_file_info(self._root).type == pafs.FileType.File:
            raise CaptureError(f"{self._root} is a file, and results need a folder: choose another place")
        found = self.filesystem.get_file_info(pafs.FileSelector(self._root, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def read(self, path: str) -> bytes:
        """A file as a whole."""
        with self.filesystem.open_input_stream(self.inside(path)) as file:
            return bytes(file.read())

    def write(self, path: str, data: bytes) -> None:
        """A file as a whole, under its name only when all of it is there."""
        place = self.inside(path)
        self.filesystem.create_dir(place.rpartition("/")[0], recursive=True)
        if self.local:
            with open(place + ".new", "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        else:
            with self.filesystem.open_output_stream(place + ".new") as stream:
                stream.write(data)
        self.filesystem.move(place + ".new", place)

    def move(self, old: str, new: str) -> None:
        """Give a file another place."""
        self.filesystem.create_dir(self.inside(new).rpartition("/")[0], recursive=True)
        self.filesystem.move(self.inside(old), self.inside(new))

    def remove(self, path: str) -> None:
        """A file or a folder, if it is there."""
        kind = self.filesystem.get_file_info(self.inside(path)).type
        if kind == pafs.FileType.Directory:
            self.filesystem.delete_dir(self.inside(path))
        elif kind == pafs.FileType.File:
            self.filesystem.delete_file(self.inside(path))
