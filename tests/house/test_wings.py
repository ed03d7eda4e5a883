"""A wing imports another wing only where that is its subject, as it stands here; a wing's private modules are its own.

That no wing imports private modules of the core is a contract of import-linter (`pyproject.toml`).
"""

import ast
import re

from .sources import PACKAGE, SOURCES, tree_of

WINGS = """
analysis asyncapi bindings bridges broker capture cli cluster delivery demo fastapi opentelemetry prometheus running
spark sync testing
protocols.csb protocols.jrep protocols.nats protocols.up protocols.uprotocol
transports.asgi transports.postmessage transports.zenoh
""".split()
ALLOWED = {
    "analysis": "capture protocols.up protocols.uprotocol",
    "asyncapi": "protocols.uprotocol",
    "bindings": "protocols.jrep protocols.uprotocol transports.asgi",
    "broker": "protocols.csb",
    "capture": "protocols.csb protocols.nats protocols.up",
    "cluster": "protocols.nats",
    "fastapi": "asyncapi bindings cluster sync transports.asgi transports.postmessage",
    "prometheus": "broker",
    "spark": "analysis capture sync",
    "testing": "cluster protocols.nats transports.postmessage",
    "cli": " ".join(WINGS),
    "demo": " ".join(WINGS),
}


def wing_of(module: str) -> str | None:
    return next((wing for wing in WINGS if module == wing or module.startswith(f"{wing}.")), None)


def imports() -> set[tuple[str, str]]:
    """Modules, and what they import of the package, as paths below it: ``("cli.show", "capture.read")``."""
    known = {".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__") for path in SOURCES}
    found = set()
    for path in SOURCES:
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        folder = path.relative_to(PACKAGE).parent.parts
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = [*folder[: len(folder) - node.level + 1], *(node.module or "").split(".")]
                for alias in node.names:
                    name = ".".join(filter(None, [*base, alias.name]))
                    found.add((module, name if name in known else ".".join(filter(None, base))))
    return found


def test_a_wing_imports_another_wing_only_where_that_is_its_subject() -> None:
    pairs = {(wing_of(module), wing_of(other)) for module, other in imports()}
    between = {(wing, other) for wing, other in pairs if wing and other and wing != other}
    allowed = {(wing, other) for wing, others in ALLOWED.items() for other in others.split()}
    assert between - allowed == set(), "hand it in, or ask whether it belongs into the core or the border"


def test_no_wing_imports_a_private_module_of_another_wing() -> None:
    found = {(module, other) for module, other in imports() if wing_of(module) != wing_of(other) and wing_of(other)}
    assert [pair for pair in found if re.search(r"\._", f".{pair[1]}")] == []
