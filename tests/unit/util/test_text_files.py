"""Small files that are read while others run."""

from pathlib import Path

import pytest

from polybus._util.own_thread import read_text_files

pytestmark = pytest.mark.native


async def test_texts_are_given_by_their_paths(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("ü", encoding="utf-8")
    (tmp_path / "b").write_text("")
    paths = {str(tmp_path / name): name for name in "ab"}
    assert list((await read_text_files(paths)).values()) == ["ü", ""]
    assert await read_text_files({}) == {}


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "the key cannot be read: No such file"),
        (b"\xff", "the key is not UTF-8"),
        (b"x" * (64 * 1024 + 1), "the key is larger than 65536 bytes"),
    ],
)
async def test_what_is_no_small_text_is_refused_without_its_path(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=text) as caught:
        await read_text_files({str(path): "the key"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("path", ["a\0b", "", "/"])
async def test_what_is_no_path_of_a_file_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="the key "):
        await read_text_files({path: "the key"})
