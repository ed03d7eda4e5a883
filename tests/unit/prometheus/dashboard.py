"""The dashboard of the examples, for the tests of its form and of its queries."""

import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[3] / "examples" / "operate" / "grafana.json"


def dashboard() -> Any:
    return json.loads(FILE.read_text())


def panels_of(document: Any) -> list[Any]:
    return [panel for outer in document["panels"] for panel in (outer, *outer.get("panels", ()))]


def expressions(document: Any) -> list[str]:
    return [target["expr"] for panel in panels_of(document) for target in panel.get("targets", ())]
