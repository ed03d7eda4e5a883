"""`polybus new` writes a service into an empty folder, under a name that images and clusters accept."""

from fnmatch import fnmatch
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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
def test_the_readme_has_at_most_22_lines(options: tuple[str, ...], tmp_path: Path) -> None:
    run(["new", str(tmp_path / "shop"), *options])
    assert len((tmp_path / "shop" / "README.md").read_text().splitlines()) <= 22


@pytest.mark.parametrize("options", [(), ("--minimal",)])
def test_the_requirements_admit_this_version(options: tuple[str, ...], tmp_path: Path) -> None:
    run(["new", str(tmp_path / "shop"), *options])
    (line,) = (tmp_path / "shop" / "requirements.txt").read_text().splitlines()
    specifier = Requirement(line).specifier
    assert version("polybus") in specifier
    assert "1.0" not in specifier


def test_the_image_has_the_modules_of_the_service_without_secrets_and_tests(tmp_path: Path) -> None:
    run(["new", str(tmp_path / "shop")])
    ignored = (tmp_path / "shop" / ".dockerignore").read_text().split()
    files = ["app.py", "orders.py", "page.html", "requirements.txt", ".env", ".git", ".venv", "test_app.py"]
    copied = [file for file in files if not any(fnmatch(file, pattern) for pattern in ignored)]
    assert copied == ["app.py", "orders.py", "page.html", "requirements.txt"]


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


@pytest.mark.parametrize("name", ["shop", "sales/shop"])
def test_a_folder_inside_a_file_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").touch()
    folder = tmp_path / "file" / name
    assert one_line(capsys, "new", str(folder)) == (2, f"{folder} is inside a file: choose another folder")


@pytest.mark.parametrize("name", ["_", "日本"])
def test_a_name_without_letters_is_refused(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, text = one_line(capsys, "new", str(tmp_path / name))
    assert (status, text) == (2, f"{name!r} is not a name for a service: use letters a to z and digits, as in polybus new shop")
    assert not (tmp_path / name).exists()


def test_a_folder_like_an_option_and_a_link_to_itself_are_handled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    assert run(["new", "--", "-x"]) == 0
    assert "  cd ./-x\n" in capsys.readouterr().out
    assert run(["new", "loop"]) == 1
    assert "loop" in capsys.readouterr().err
