"""Temporary folders of `polybus demo`: one that was killed could not remove its own."""

import os
import tempfile
from pathlib import Path

import pytest

from polybus.cli.demo import remove_orphans


def test_the_next_demo_removes_the_folder_of_a_killed_one_and_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for name in ("polybus-demo-killed", "polybus-demo-linked", "polybus-demo-runs", "of-others"):
        (tmp_path / name).mkdir()
    (tmp_path / "polybus-demo-killed" / "vehicle.log").write_text("recorded")
    (tmp_path / "polybus-demo-linked").rmdir()
    (tmp_path / "polybus-demo-linked").symlink_to(tmp_path / "of-others")
    for name in ("polybus-demo-killed", "polybus-demo-linked", "of-others"):
        os.utime(tmp_path / name, (0, 0), follow_symlinks=False)
    remove_orphans()
    assert sorted(one.name for one in tmp_path.iterdir()) == ["of-others", "polybus-demo-linked", "polybus-demo-runs"]
