"""`polybus new` writes a service into an empty folder, under a name that images and clusters accept."""

from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from polybus.cli.app import run

from .support import Cli

COMMON = {".dockerignore", "Dockerfile", "README.md", "app.py", "requirements.txt", "test_app.py"}


@pytest.mark.parametrize(("options", "files"), [((), COMMON | {"page.html"}), (("--minimal",), COMMON)])
def test_a_service_is_written_with_its_next_steps_and_no_secrets_in_its_image(
    options: tuple[str, ...], files: set[str], tmp_path: Path, cli: Cli
) -> None:
    folder = tmp_path / "sales" / "My shop 2"
    out, err = cli.both(0, "new", str(folder), *options)
    assert err == ""
    assert {path.name for path in folder.iterdir()} == files
    assert f"  cd '{folder}'\n" in out
    assert out.endswith("  python app.py\n")
    assert (folder / "README.md").read_text().startswith("# my-shop-2\n")
    assert all("$" not in (folder / name).read_text() for name in files)
    assert len((folder / "README.md").read_text().splitlines()) <= 23
    *_, line = (folder / "requirements.txt").read_text().splitlines()
    specifier = Requirement(line).specifier
    assert version("polybus") in specifier
    assert "1.0" not in specifier
    ignored = (folder / ".dockerignore").read_text().split()
    there = ["app.py", "orders.py", "page.html", "requirements.txt", ".env", ".git", ".venv", "test_app.py"]
    copied = [file for file in there if not any(fnmatch(file, pattern) for pattern in ignored)]
    assert copied == ["app.py", "orders.py", "page.html", "requirements.txt"]


def test_the_current_folder_gives_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "class").mkdir()
    monkeypatch.chdir(tmp_path / "class")
    assert run(["new", "."]) == 0
    assert Path("README.md").read_text().startswith("# class\n")


def test_nothing_is_overwritten(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "app.py").write_text("mine")
    for taken in (tmp_path, tmp_path / "app.py"):
        assert cli.line(2, "new", str(taken)) == f"{taken} exists and is not an empty folder: choose another name, or remove it"
    assert [path.name for path in tmp_path.iterdir()] == ["app.py"]
    assert (tmp_path / "app.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["shop", "sales/shop"])
def test_a_folder_inside_a_file_is_refused(name: str, tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / name
    assert cli.line(2, "new", str(folder)) == f"{folder} is inside a file: choose another folder"


@pytest.mark.parametrize("name", ["_", "日本"])
def test_a_name_without_letters_is_refused(name: str, tmp_path: Path, cli: Cli) -> None:
    text = cli.line(2, "new", str(tmp_path / name))
    assert text == f"{name!r} is not a name for a service: use letters a to z and digits, as in polybus new shop"
    assert not (tmp_path / name).exists()


def test_a_folder_like_an_option_and_a_looping_link_are_fine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert "  cd ./-x\n" in cli.out("new", "--", "-x")
    assert "loop" in cli.err(1, "new", "loop")
