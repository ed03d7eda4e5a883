"""The allocator of the C library, and how it treats the blocks of large messages."""

from __future__ import annotations

from io import BufferedReader, BytesIO
from typing import Final

_MAPPED: Final = 128 * 1024
"""Bytes from which glibc maps a block by itself, and gives it back to the kernel as soon as it is free."""
_MOST: Final = 32 * 1024 * 1024 - 64 * 1024
"""Bytes of the largest block from whose end it learns (`DEFAULT_MMAP_THRESHOLD_MAX`, mallopt(3)), and a little less."""
_IN_FLIGHT: Final = 4
"""Blocks of the size of a message that its way through this process takes: as it is read, put together, decoded, encoded."""


def keep_freed_blocks(size: int) -> None:
    """Have glibc keep freed blocks as large as messages of so many bytes, up to twice what one needs on its way.

    Otherwise each page of each large message is a new one, which the kernel has to clear: more than half of the processor time
    for a mebibyte. Its threshold follows the largest mapped block that was ever freed (mallopt(3), `M_MMAP_THRESHOLD`): one is
    taken and freed here. It is never touched, so that it costs no memory: bytes were cleared, as soon as glibc has such a block
    at hand. Other allocators take no notice.
    """
    if size >= _MAPPED:
        BufferedReader(BytesIO(), min(size * _IN_FLIGHT, _MOST))
