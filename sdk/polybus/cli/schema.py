"""`polybus schema`"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

from .. import Bus
from .options import argument, option
from .problems import UsageError
from .serve import imported


def schema(
    app: Annotated[str, argument("APP", "module:bus, or a contract, module:Class, imported from the current folder.")],
    html: Annotated[Path | None, option("FILE", "Write a page for people there, instead of the document to stdout.")] = None,
    title: Annotated[str | None, option("TITLE", "Of the document; by default the name of the module or contract.")] = None,
    version: Annotated[str, option("V", "Of what is described.")] = "1.0.0",
    prefix: Annotated[str, option("PREFIX", "Of the subjects of a contract, as for bus.implement().")] = "",
    server: Annotated[
        list[str] | None, option("URL", "Where it is served, for example ubre+wss://example.org/bus; several are possible.")
    ] = None,
) -> None:
    """Describe what a bus, or a contract, can be asked and told, and publishes, as AsyncAPI 3."""
    from ..asyncapi import document, page, to_text
    from ..asyncapi.document import servers_of

    module, source = imported(app, "module:bus, for example app:bus")
    _check(app, module, source)
    name = app.partition(":")[0] if isinstance(source, Bus) else app.rpartition(":")[2]
    said = inspect.getdoc(module) or "" if isinstance(source, Bus) else ""
    servers = servers_of(server or ())
    try:
        made = document(source, title=title or name, version=version, description=said, prefix=prefix, servers=servers)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    if html is None:
        sys.stdout.write(to_text(made))
    else:
        html.write_text(page(made), encoding="utf-8")


def _check(app: str, module: Any, source: Any) -> None:
    """Raise UsageError for what is neither a bus nor a Protocol class, and name what there is."""
    if isinstance(source, Bus) or getattr(source, "_is_protocol", False):
        return
    name = app.partition(":")[0]
    found = [
        f"{name}:{key}"
        for key, value in vars(module).items()
        if isinstance(value, Bus) or (getattr(value, "_is_protocol", False) and value.__module__ == module.__name__)
    ]
    raise UsageError(f"{app} is neither a Bus nor a Protocol class" + (f"; there is {', '.join(found)}" if found else ""))
