"""The repository as a whole: nothing in it ties it to one machine or to one package registry."""

import re
import shutil
import subprocess
import tomllib
from importlib.metadata import distributions
from pathlib import Path

import pytest
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).resolve().parents[2]

# Put together here, so that this file does not contain what it looks for.
REGISTRY_HOSTS = [
    *(name.replace(" ", ".") for name in ("pypi org", "pypi python org", "pythonhosted org", "npmjs org", "npmjs com")),
    *(name.replace(" ", ".") for name in ("yarnpkg com", "anaconda org", "crates io", "rubygems org", "proxy golang org")),
    *(name.replace(" ", ".") for name in ("repo1 maven org", "repo maven apache org")),
]
# A slash that does not go on a word is the root of a file system, not a part of a URL or of a relative path.
ROOT_FOLDERS = "|".join(["work", "root", "tmp", "home", "Users", "opt"])
MACHINE_PATH = re.compile(rf"(?<![\w.\-}}>])/(?:{ROOT_FOLDERS})/\w")


def tracked_files() -> list[Path]:
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    listing = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False)
    if listing.returncode != 0:
        pytest.skip("not a git repository")
    paths = (ROOT / name for name in listing.stdout.decode().split("\0") if name)
    return [path for path in paths if path.is_file()]


def test_no_file_names_the_host_of_a_package_registry_or_an_absolute_path_of_a_machine() -> None:
    found = []
    for path in tracked_files():
        text = path.read_bytes().decode(errors="replace")
        lowered = text.lower()
        named = [host for host in REGISTRY_HOSTS if host in lowered]
        named += [match[0] for match in MACHINE_PATH.finditer(text)]
        found += [f"{path.relative_to(ROOT)}: {name}" for name in named]
    assert found == []


def test_the_tests_of_make_test_import_nothing_that_only_the_second_tier_installs() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
    tier = [ROOT / folder for folder in options["testpaths"]]
    files = [file for file in tracked_files() if file.suffix == ".py" and any(file.is_relative_to(folder) for folder in tier)]
    assert len(files) > 200
    wrong = re.compile(r"^(?:from|import) (?:pyspark|polybus\.spark|faststream|hatchling)\b.*", re.M)
    assert [(file.name, line) for file in files for line in wrong.findall(file.read_text())] == []


def test_what_constraints_txt_pins_runs_on_the_first_release_of_the_oldest_python() -> None:
    """Debian 12 has 3.11.2; a package that needs a later one stops `make` there."""
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"].removeprefix(">=") + ".0"
    places = [None, [str(folder) for folder in ROOT.glob(".venv-docs/lib/python*/site-packages")]]
    found = [each for place in places for each in (distributions() if place is None else distributions(path=place))]
    assert len(found) > 50
    needs = {each.metadata["Name"]: SpecifierSet(",".join(each.metadata.get_all("Requires-Python") or ())) for each in found}
    assert [f"{name} {specifiers}" for name, specifiers in needs.items() if not specifiers.contains(oldest)] == []
