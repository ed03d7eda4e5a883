"""The address of the repository on every page, as soon as ``pyproject.toml`` names one, and what is shown where a link to a
page is passed on: mkdocs calls this.
"""

from __future__ import annotations

import tomllib
from html import escape
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


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Put title, description and the picture of the card into a page. The picture needs the site's own address."""
    title = config["site_name"] if page.is_homepage else f"{page.title} - {config['site_name']}"
    meta = {"og:type": "website", "og:title": title, "og:description": config["site_description"]}
    if config["site_url"]:
        meta |= {
            "og:url": page.canonical_url,
            "og:image": f"{config['site_url']}assets/card.png",
            "twitter:card": "summary_large_image",
        }
    lines = "".join(f'<meta property="{escape(name)}" content="{escape(value)}">\n' for name, value in meta.items())
    return output.replace("</head>", f"{lines}</head>", 1)
