"""Files of Parquet from somebody else: what they unpack to is known before any reader reserves memory for it."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest

from polybus.analysis import DuckEngine, Pipeline, journeys, open_tables
from polybus.analysis.results import LOG
from polybus.capture import CaptureError
from polybus.capture.columns import sizes

from .generator import traffic

HERE = pafs.LocalFileSystem()
MANY = pa.array([0] * 20_000, pa.int32())


def _write(path: Path, column: Any, **options: Any) -> Path:
    pq.write_table(pa.table({"data": column}), path, compression="zstd", **options)
    return path


def _once_for_all(path: Path) -> Path:
    return _write(path, pa.DictionaryArray.from_arrays(MANY, pa.array([b"x" * 100_000])), store_schema=False)


def _once_in_lists(path: Path) -> Path:
    texts = pa.DictionaryArray.from_arrays(MANY, pa.array(["x" * 100_000]))
    return _write(path, pa.ListArray.from_arrays(pa.array(range(20_001), pa.int32()), texts), store_schema=False)


def _zeros(path: Path) -> Path:
    return _write(path, [bytes(1 << 20)] * 600, use_dictionary=False)


def _patched(path: Path, old: bytes, new: bytes) -> Path:
    """A file whose one page says something else of itself than it did."""
    text = _write(path, [bytes(range(256)) * 4000], use_dictionary=False).read_bytes()
    # Its kind, and how large it is when unpacked: three bytes of a number.
    [(begin, end)] = [found.span() for found in re.finditer(old, text[:200], re.DOTALL)]
    assert end - begin == len(new)
    path.write_bytes(text[:begin] + new + text[end:])
    return path


HEAD = rb"\x15\x00\x15[\x80-\xff][\x80-\xff][\x00-\x7f]\x15"
BOMBS: list[tuple[Callable[[Path], Path], str]] = [
    (_once_for_all, "unpack to .* MiB or more, the limit is 512 MiB each"),
    (_once_in_lists, "unpack to .* MiB or more, the limit is 512 MiB each"),
    (_zeros, "unpack to .* MiB or more, the limit is 512 MiB each"),
    (lambda path: _patched(path, HEAD, b"\x15\x00\x15\xfe\xff\x7f\x15"), "corrupt: pages of data unpack to more than the file"),
    (lambda path: _patched(path, HEAD, b"\x15\x00\x15\x01\x00\x00\x15"), "corrupt: a page of data cannot be read"),
    (lambda path: _patched(path, HEAD, b"\x1c" * 7), "corrupt: a page of data cannot be read"),
]


@pytest.mark.parametrize(
    ("bomb", "said"), BOMBS, ids=["once for all", "in lists", "zeros", "more than it says", "less than nothing", "nested"]
)
def test_a_file_that_unpacks_to_more_than_the_limit_is_refused_before_it_takes_memory(
    bomb: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    path = bomb(tmp_path / "data.parquet")
    assert path.stat().st_size < 200_000
    before = pa.total_allocated_bytes()
    with pytest.raises(CaptureError, match=said):
        sizes.check_file(HERE, str(path))
    assert pa.total_allocated_bytes() - before < 10_000_000


def test_a_file_of_large_values_that_are_few_enough_is_read(tmp_path: Path) -> None:
    values = pa.DictionaryArray.from_arrays(MANY.slice(0, 5000), pa.array([b"x" * 100_000, b"y"]))
    sizes.check_file(HERE, str(_write(tmp_path / "data.parquet", values, store_schema=False)))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    with DuckEngine(threads=1) as engine:
        Pipeline(engine).run(traffic(60).write(folder / "capture"), folder / "out", report=False)
    return folder


@pytest.mark.parametrize(
    ("where", "use"),
    [*((where, use) for where in ("events/**", LOG) for use in ("tables", "journeys", "report", "run")), ("_state/**", "run")],
)
def test_no_reader_of_results_opens_a_file_that_unpacks_to_more(where: str, use: str, results: Path, tmp_path: Path) -> None:
    out = shutil.copytree(results / "out", tmp_path / "out")
    paths = [out / LOG / f"{0:020d}.checkpoint.parquet"] if where == LOG else list(out.glob(f"{where}/*.parquet"))
    assert all(map(_once_for_all, paths)) and paths
    with pytest.raises(CaptureError, match="unpack to .* MiB or more"), DuckEngine(threads=1) as engine:
        if use == "tables":
            open_tables(out)
        elif use == "journeys":
            journeys(out)
        elif use == "report":
            Pipeline(engine).report(results / "capture", out)
        else:
            Pipeline(engine).run(results / "capture", out, settle=True)
