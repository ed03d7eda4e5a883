"""The npm package of the client, as a project installs it."""

import shutil
from pathlib import Path

import pytest

from tests.integration.interop.node_peer import require_node

from .packages import ROOT, run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_node("esbuild", "typescript")
    folder = tmp_path_factory.mktemp("npm")
    for place in ("js", "sdk/polybus/javascript"):
        shutil.copytree(ROOT / place, folder / place)
    packed = run("npm", "pack", "--silent", cwd=folder / "js").strip()
    assert {path.name for path in (folder / "js").iterdir()} == {"README.md", "package.json", packed}
    project = folder / "project"
    project.mkdir()
    (project / "package.json").write_text('{"type": "module", "private": true}')
    run("npm", "install", "--offline", "--silent", f"../js/{packed}", cwd=project)
    return project
