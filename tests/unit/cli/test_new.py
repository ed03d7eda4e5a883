"""`polybus new` writes a service into an empty folder, under a name that images and clusters accept."""

from pathlib import Path

import pytest

from polybus.cli.app import run

from .support import one_line

COMMON = {".dockerignore", "Dockerfile", "README.md", "app.py", "requirements.txt", "test_app.py"}


@pytest.mark.parametrize(("options", "files"), [((), COMMON | {"page.html"}), (("--minimal",), COMMON)])
def test_a_service_is_written_and_its_next_steps_are_printed(
    options: tuple[str, ...], files: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "sales" / "My shop 2"
    assert run(["new", str(folder), *options]) == 0
    assert {path.name for path in folder.iterdir()} == files
    out, err = capsys.readouterr()
    assert err == ""
    assert f"  cd '{folder}'\n" in out
    assert out.endswith("  python app.py\n")
    assert (folder / "README.md").read_text().startswith("# my-shop-2\n")
    assert all("$" not in (folder / name).read_text() for name in files)


@pytest.mark.parametrize("options", [(), ("--minimal",)])
def test_the_readme_has_twenty_lines(options: tuple[str, ...], tmp_path: Path) -> None:
    run(["new", str(tmp_path / "shop"), *options])
    assert len((tmp_path / "shop" / "README.md").read_text().splitlines()) <= 22


def test_the_current_folder_gives_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "class").mkdir()
    monkeypatch.chdir(tmp_path / "class")
    assert run(["new", "."]) == 0
    assert Path("README.md").read_text().startswith("# class\n")


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "app.py").write_text("mine")
    for taken in (tmp_path, tmp_path / "app.py"):
        status, text = one_line(capsys, "new", str(taken))
        assert (status, text) == (2, f"{taken} exists and is not an empty folder: choose another name, or remove it")
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["_", "日本"])
def test_a_name_without_letters_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, "new", str(tmp_path / name))
    assert (status, text) == (2, f"{name!r} is not a name for a service: use letters a to z and digits, as in polybus new shop")
    assert not (tmp_path / name).exists()
