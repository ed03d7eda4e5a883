"""The step of the build that compiles `polybus._speedups`, which the package does without where there is no compiler.

With ``POLYBUS_SPEEDUPS=0`` in the environment nothing is compiled: the wheel is for every platform then, Pyodide among them.
"""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NAME = "polybus._speedups"


class SpeedupsHook(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build into the sources where they are installed in place, else into the wheel."""
        if os.environ.get("POLYBUS_SPEEDUPS") == "0":
            return
        from setuptools import Distribution, Extension  # not needed for a wheel of Python alone

        extension = Extension(NAME, ["sdk/polybus/_speedups.c"], optional=True)
        command: Any = Distribution({"ext_modules": [extension], "package_dir": {"": "sdk"}}).get_command_obj("build_ext")
        self._folder = TemporaryDirectory()  # until the wheel is written
        command.build_temp = self._folder.name
        if version == "editable":
            command.inplace = True
        else:
            command.build_lib = self._folder.name
        command.ensure_finalized()
        built = Path(command.get_ext_fullpath(NAME))
        built.unlink(missing_ok=True)  # of older sources
        command.run()
        if not built.exists():
            self.app.display_warning("polybus: _speedups.c could not be compiled; the package is Python alone and slower")
        elif version != "editable":
            build_data["force_include"][str(built)] = f"polybus/{built.name}"
            build_data.update(pure_python=False, infer_tag=True)
