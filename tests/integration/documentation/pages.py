"""The documentation as built by `make docs`, for tests of its pages."""

from pathlib import Path
from typing import Final

from tests.integration.web.browser import missing

ROOT: Final = Path(__file__).resolve().parents[3]


def built_site() -> Path:
    """The folder of the pages, if they are not older than what they are made of; else the test is skipped, in CI it fails."""
    built = ROOT / "site" / "index.html"
    sources = [ROOT / "mkdocs.yml", *(path for path in (ROOT / "docs").rglob("*") if path.suffix in (".md", ".css", ".svg"))]
    if not built.exists():
        missing("the documentation is not built: make docs")
    newer = [path.name for path in sources if path.stat().st_mtime > built.stat().st_mtime]
    if newer:
        missing(f"site/ is older than {newer[0]}: make docs")
    return built.parent
