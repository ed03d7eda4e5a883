"""Programs in the README and in docs/ are complete, and are run.

A block ```` ```python ```` is a program. One whose first line is a comment with a file name (``# app.py``) is kept under that
name, so that later blocks of the page can import it; a ``test_*.py`` is run by pytest. A block that cannot be run says so, and
why: ```` ```python no-run needs a broker ````. A block ```` ```text ```` right after a program is what it prints.
"""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from attrs import frozen

import polybus
import polybus.errors
import polybus.sync
from tests.support import free_port

ROOT = Path(__file__).resolve().parents[3]
DOCS = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [ROOT / "README.md", *DOCS]
LINKED = [
    *PAGES,
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    ROOT / "bench" / "README.md",
    *sorted((ROOT / "examples").rglob("*.md")),
]

FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```[ ]*$(?:\s*^```text\n(?P<prints>.*?)^```[ ]*$)?", re.M | re.S)
FILE_NAME = re.compile(r"# ([\w-]+\.py)$")
NOT_RUN = "no-run"
# Log lines on stderr of a link that a program cuts, or of a client that it lets be refused.
PROVOKED = re.compile(r"the link to \S+ is (lost|back)\b|refused \S+ \(\S+\): ")
MEASURED = re.compile(r"after (?:less than )?\d+\.\d s")
COLUMNS = 96
TYPES_KNOWN = ROOT / ".mypy_cache" / "pages"
"""What mypy has found out about the packages that pages use."""


@frozen
class Program:
    info: str
    text: str
    prints: str | None
    line: int

    @property
    def words(self) -> list[str]:
        return self.info.split()

    @property
    def is_python(self) -> bool:
        return self.words[:1] == ["python"]

    @property
    def runs(self) -> bool:
        return self.is_python and NOT_RUN not in self.words

    @property
    def name(self) -> str | None:
        """The file that it asks to be kept in."""
        named = FILE_NAME.match(self.text.partition("\n")[0])
        return named[1] if named else None

    @property
    def file_name(self) -> str:
        return self.name or f"line_{self.line}.py"


def programs(page: str) -> list[Program]:
    return [
        Program(found["info"].strip(), found["text"], found["prints"], page.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(page)
    ]


def with_programs() -> list[Path]:
    return [page for page in PAGES if any(program.runs for program in programs(page.read_text()))]


@pytest.mark.parametrize("page", with_programs(), ids=lambda page: str(page.relative_to(ROOT)))
def test_the_programs_of_a_page_run(page: Path, tmp_path: Path) -> None:
    found = [program for program in programs(page.read_text()) if program.runs]
    tests = [program for program in found if program.file_name.startswith("test_")]
    for program in found:
        if program not in tests:
            run([program], tmp_path, page)
    assert len({program.file_name for program in tests}) == len(tests)
    if tests:
        run(tests, tmp_path, page)


def run(chosen: list[Program], folder: Path, page: Path) -> None:
    for program in chosen:
        (folder / program.file_name).write_text(program.text)
    first, where = chosen[0], f"{page.relative_to(ROOT)}:{chosen[0].line}"
    under_pytest = first.file_name.startswith("test_")
    command = [
        sys.executable,
        "-W",
        "error",
        *(["-m", "pytest", "-q", "-p", "no:asyncio", "-p", "no:hypothesispytest"] if under_pytest else []),
        *(program.file_name for program in chosen),
    ]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 0, f"{where}\n{ended.stdout}{ended.stderr}"
    unexpected = [line for line in ended.stderr.splitlines() if not PROVOKED.match(line)]
    assert unexpected == [], where
    if under_pytest:
        assert all(program.prints is None for program in chosen), where
    elif first.prints is not None:
        assert without_times(ended.stdout) == without_times(first.prints), where


def without_times(text: str) -> str:
    """A machine may stand still, so that what a program prints of a time is not the page's."""
    return MEASURED.sub("after 0.0 s", text)


def in_folders(pages: dict[Path, list[Program]], folder: Path) -> list[dict[str, Path]]:
    """Write the programs of many pages into as few folders as their names allow; of each, the page that a file comes from."""
    folders: list[dict[str, Path]] = []
    for page, found in pages.items():
        alone = re.sub(r"\W", "_", str(page.relative_to(ROOT)))  # what has no name, nobody imports
        texts = {program.name or f"{alone}_{program.file_name}": program.text for program in found}
        if (files := next((files for files in folders if not files.keys() & texts), None)) is None:
            folders.append(files := {})
        place = folder / str(folders.index(files))
        place.mkdir(exist_ok=True)
        for name, text in texts.items():
            (place / name).write_text(text)
            files[name] = page
    return folders


@pytest.fixture(scope="module")
def complaints(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, list[str]]:
    """What mypy has to say of the programs of each page: it reads the packages that they use once for all of them."""
    folder = tmp_path_factory.mktemp("typed")
    pages = {page: [program for program in programs(page.read_text()) if program.runs] for page in with_programs()}
    found: dict[Path, list[str]] = {page: [] for page in pages}
    for number, files in enumerate(in_folders(pages, folder)):
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={TYPES_KNOWN}", *files]
        ended = subprocess.run(command, cwd=folder / str(number), capture_output=True, text=True, timeout=390, check=False)
        said = ended.stdout.splitlines()
        assert ended.stderr == ""
        assert said[-1].startswith("Found" if ended.returncode else "Success: "), ended.stdout
        assert f" {len(files)} source file" in said[-1], ended.stdout
        for line in said[:-1]:
            found[files[line.partition(":")[0]]].append(line)
    return found


@pytest.mark.full
@pytest.mark.parametrize("page", with_programs(), ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.timeout(1200)  # the first one waits for mypy, which may have read no package before
def test_the_programs_of_a_page_are_typed(page: Path, complaints: dict[Path, list[str]]) -> None:
    assert complaints[page] == []


WITHOUT_TYPES = re.compile(r"^(?:import|from) (nats|pyarrow|polybus\.capture)\b", re.M)
"""Packages that have no types, and our own functions that give their objects: pages that use them know less."""
UNKNOWN = ("reportUnknownMemberType", "reportUnknownVariableType", "reportUnknownArgumentType")


@pytest.mark.full
@pytest.mark.timeout(400)
def test_pyright_takes_the_programs_of_all_pages(tmp_path: Path) -> None:
    """In strict mode and in one process: each page is a folder of its own."""
    folders: dict[str, Path] = {}
    for page in with_programs():
        folder = tmp_path / f"page_{len(folders)}"
        folder.mkdir()
        folders[folder.name] = page.relative_to(ROOT)
        for program in programs(page.read_text()):
            if program.runs:
                (folder / program.file_name).write_text(program.text)
    environments: list[dict[str, object]] = []
    for name in folders:
        untyped = any(WITHOUT_TYPES.search(path.read_text()) for path in (tmp_path / name).iterdir())
        environments.append({"root": name, **dict.fromkeys(UNKNOWN if untyped else (), False)})
    settings = {"typeCheckingMode": "strict", "executionEnvironments": environments}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", f"--pythonpath={sys.executable}"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=390, check=False)
    found = json.loads(ended.stdout)
    assert found["summary"]["filesAnalyzed"] > len(folders)
    wrong = []
    for error in found["generalDiagnostics"]:
        path = Path(error["file"]).relative_to(tmp_path)
        line = error["range"]["start"]["line"] + 1
        wrong.append(f"{folders[path.parts[0]]}, {path.name}:{line}: {error['message']} ({error.get('rule')})")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_blocks_fit_on_a_page_that_is_1280_pixels_wide(page: Path) -> None:
    """Except for what programs print, which is wrapped. The browser's word is in tests/integration/browser."""
    blocks = [block for block in programs(page.read_text()) if block.words[:1] != ["text"]]
    wide = [(block.line, line) for block in blocks for line in block.text.splitlines() if len(line) > COLUMNS]
    assert wide == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_program_that_is_not_run_says_why(page: Path) -> None:
    for program in programs(page.read_text()):
        if program.is_python and not program.runs:
            assert program.words[1] == NOT_RUN, f"{page.name}:{program.line}"
            assert len(program.words) > 2, f"{page.name}:{program.line}: no-run without a reason"


LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.M)


@pytest.mark.parametrize("page", LINKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    lost = []
    for target, anchor in LINK.findall(without_programs(page.read_text())):
        path = page.parent / target if target else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            lost.append(f"{target}#{anchor}")
    assert lost == []


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_begins_with_a_paragraph_that_says_for_whom_and_what(page: Path) -> None:
    title, _, rest = without_programs(page.read_text()).partition("# ")[2].partition("\n\n")
    first = rest.split("\n\n")[0]
    assert title
    assert len(first) > 50, first
    assert not first.startswith(("#", "|", "* ", "::: ")), first


@pytest.mark.parametrize("page", DOCS, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_in_the_navigation_and_link_to_nothing_outside_of_the_documentation(page: Path) -> None:
    name = page.relative_to(ROOT / "docs").as_posix()
    assert re.search(rf"^ +- (?:[\w ]+: )?{re.escape(name)}$", (ROOT / "mkdocs.yml").read_text(), re.M), f"{name} is in no menu"
    for target, _ in LINK.findall(without_programs(page.read_text())):
        assert (page.parent / target).resolve().is_relative_to(ROOT / "docs"), target


def without_programs(page: str) -> str:
    return FENCE.sub("", page)


def anchors(page: Path) -> set[str]:
    """The headings of a page as mkdocs names them, and what mkdocstrings puts there."""
    text = without_programs(page.read_text())
    slugs = {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in HEADING.findall(text)}
    return slugs | set(re.findall(r"^::: ([\w.]+)$", text, re.M))


def test_what_is_made_from_the_program_is_what_it_would_make_now() -> None:
    spec = importlib.util.spec_from_file_location("make_reference", ROOT / "docs" / "make_reference.py")
    assert spec is not None and spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    old = [page.name for page in maker.PAGES if page.read_text() != maker.written(page)]
    assert old == [], "run python docs/make_reference.py"


def test_every_public_name_is_in_the_reference() -> None:
    reference = "".join(page.read_text() for page in (ROOT / "docs" / "reference").rglob("*.md"))
    documented = {name.removeprefix("polybus.") for name in re.findall(r"^(?:::: |        - )\"?([\w.]+)\"?$", reference, re.M)}
    errors = set(polybus.errors.__all__) if "errors" in documented else set()
    limits = {"Limits"} if "limits.Limits" in documented else set()
    assert set(polybus.__all__) - documented - errors - limits == set()
    assert set(polybus.sync.__all__) - documented == set()
    modules = {"protocols", "transports", "events", "plugins", "testing", "fastapi"}
    assert modules - documented == set()


def test_the_readme_serves_and_asks_in_two_programs_and_names_two_commands(tmp_path: Path) -> None:
    readme = (ROOT / "README.md").read_text()
    assert readme.count("\n") <= 65
    assert "make demo" in readme
    assert "make test" in readme
    port = free_port()
    for program in programs(readme):
        if program.name:
            (tmp_path / program.name).write_text(program.text.replace(":8000", f":{port}"))
    [printed] = re.findall(r"^anyio.run\(main\) +# (.+)$", readme, re.M)
    command = [sys.executable, "-u", "-W", "error"]
    with subprocess.Popen([*command, "server.py"], cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            assert server.stdout.readline().startswith("serving ")
            asked = subprocess.run(
                [*command, "client.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
            )
        finally:
            server.terminate()
    assert (asked.stdout.strip(), asked.stderr) == (printed, "")
