"""`polybus new`"""

from __future__ import annotations

import os
import re
import shlex
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from ..plugins.tools import in_one_line
from .options import argument, flag
from .problems import UsageError

_TEMPLATES: Final = files("polybus.cli") / "templates"
_SUFFIX: Final = ".tmpl"
"""Suffix that makes linters and type checkers ignore the templates."""
_LONGEST: Final = 63
"""Maximum length of a DNS label, in characters."""


def new(
    folder: Annotated[Path, argument("DIR", "Folder to create. The service is named after it.")],
    minimal: Annotated[bool, flag("--minimal", "Leave out FastAPI and the web page.")] = False,
) -> None:
    """Create a small service with handlers, a web page, tests and a Dockerfile."""
    name = _service_name(folder)
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is not an empty folder: choose another name, or remove it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except NotADirectoryError:
        raise UsageError(f"{folder} is inside a file: choose another folder") from None
    for part in ("common", "minimal" if minimal else "fastapi"):
        for template in (_TEMPLATES / part).iterdir():
            text = Template(template.read_text(encoding="utf-8")).substitute(name=name)
            (folder / template.name.removesuffix(_SUFFIX)).write_text(text, encoding="utf-8")
    written = ", ".join(sorted(path.name for path in folder.iterdir()))
    typer.echo(in_one_line(f"{folder}: {written}"))
    path = f"./{folder}" if str(folder).startswith("-") else str(folder)  # `cd` would interpret it as an option
    typer.echo(f"\nNext:\n  cd {in_one_line(shlex.quote(path))}\n  pip install -r requirements.txt pytest")
    typer.echo("  python -m pytest\n  python app.py")


def _service_name(folder: Path) -> str:
    """Return a name that is valid for images, clusters and hosts. For example, ``My shop`` becomes ``my-shop``."""
    given = os.path.basename(os.path.abspath(folder))  # links are not followed
    name = re.sub(r"[^a-z0-9]+", "-", given.lower()).strip("-")[:_LONGEST].rstrip("-")
    if not name:
        raise UsageError(f"{given!r} is not a name for a service: use letters a to z and digits, as in polybus new shop")
    return name
