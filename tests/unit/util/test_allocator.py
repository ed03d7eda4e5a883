"""What the allocator of the C library is told costs no memory, however many buses there are."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
from resource import RUSAGE_SELF, getrusage
from polybus._core.runtime.runtime import keep_freed_blocks

keep_freed_blocks(2**20)
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(20):
    keep_freed_blocks(2**20)
between = getrusage(RUSAGE_SELF).ru_minflt
large = [b"x" * 2**20 for _ in range(20)]
print(between - before, getrusage(RUSAGE_SELF).ru_minflt - between)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="it is glibc that is told, and its pages are counted")
def test_twenty_buses_in_a_process_touch_no_page_of_the_block_that_glibc_learns_from() -> None:
    command = [sys.executable, "-c", PROGRAM]
    told, large = map(int, subprocess.run(command, capture_output=True, check=True, text=True).stdout.split())
    assert told < large / 10, "page faults, of which a kernel takes one for 4 KiB or, with large pages, for more"


AGAIN = """
import sys
from resource import RUSAGE_SELF, getrusage
from polybus._core.runtime.runtime import keep_freed_blocks

if sys.argv[1:]:
    keep_freed_blocks(2**20)
before = getrusage(RUSAGE_SELF).ru_minflt
for _ in range(50):
    message, decoded = b"x" * 2**20, b"x" * 2**20
    del message, decoded
print(getrusage(RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="it is glibc that is told")
def test_the_pages_of_a_large_message_are_kept_for_the_next_one() -> None:
    kept, given_back = (
        int(subprocess.run([sys.executable, "-c", AGAIN, *told], capture_output=True, check=True).stdout)
        for told in (["told"], [])
    )
    assert kept < given_back / 5
