"""The address of the repository on every page, as soon as ``pyproject.toml`` names one: mkdocs calls this."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

PYPROJECT = Path(__file__).resolve().parents[1] / "pyproject.toml"


def on_config(config: Any) -> Any:
    """Take the repository's address, and the site's own, from the metadata of the package."""
    urls = {name.lower(): url for name, url in tomllib.loads(PYPROJECT.read_text())["project"].get("urls", {}).items()}
    if "repository" in urls:
        config["repo_url"] = urls["repository"]
        config["repo_name"] = urls["repository"].rstrip("/").split("/", 3)[-1]
    if "documentation" in urls:
        config["site_url"] = urls["documentation"].rstrip("/") + "/"
    return config
