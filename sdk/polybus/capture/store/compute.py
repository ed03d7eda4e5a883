"""The functions of `pyarrow.compute`, which it makes when it is imported: no type checker knows them."""

from __future__ import annotations

from typing import Any

import pyarrow.compute

pc: Any = pyarrow.compute
