"""`polybus serve`"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

from .. import Bus, run
from .._core.lifespan import raised_by_lifespan
from ..transports._ws.policy import check_hosts, check_origins
from .options import Cert, Insecure, Key, Origin, argument, duration, option
from .problems import PeerError, UsageError
from .values import certificate


def serve(
    app: Annotated[str, argument("APP", "module:bus, imported from the current folder.")],
    urls: Annotated[list[str], argument("URL...", "Where, for example ubre+ws://127.0.0.1:8000/bus; port 0 takes a free one.")],
    origin: Origin = None,
    host: Annotated[list[str] | None, option("H", "A further Host of a loopback server, behind a proxy; several.")] = None,
    relay: Annotated[
        list[str] | None, option("PATTERN", "Pass such publications on to other clients; several are possible.")
    ] = None,
    insecure: Insecure = False,
    cert: Cert = None,
    key: Key = None,
    health: Annotated[str | None, option("URL", "Answer /livez and /readyz there, for example http://127.0.0.1:8081")] = None,
    drain: Annotated[float, duration("Seconds that running handlers get after SIGTERM.")] = 20.0,
    delay: Annotated[float, duration("Seconds before that, while /readyz says 503 and requests are still taken.")] = 0.0,
    workers: Annotated[int, option("N", "Processes that serve, of a bus with a cluster.", min=1)] = 1,
) -> None:
    """Serve a bus until SIGINT or SIGTERM, then let running handlers finish."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    bus = load_bus(app)
    for pattern in relay or ():
        bus.relay(pattern)
    check_origins(origin or ())
    check_hosts(host or ())
    options: dict[str, Any] = {"origins": tuple(origin or ()), "hosts": tuple(host or ()), "insecure": insecure}
    if (tls := certificate(cert, key)) is not None:
        options["tls"] = tls
    try:
        run(bus, *urls, drain=drain, delay=delay, health=health, workers=workers, **options)
    except Exception as error:
        if raised_by_lifespan(error):
            raise PeerError(f"the lifespan of {app} failed: {type(error).__name__}: {error}{_where(error)}") from None
        raise


def _where(error: BaseException) -> str:
    """The innermost line of code that an error comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""


def load_bus(app: str) -> Bus:
    """The bus that ``module:name`` names; UsageError where it cannot be imported, or is no bus."""
    module, bus = imported(app, "module:bus, for example app:bus")
    if not isinstance(bus, Bus):
        module_name = app.partition(":")[0]
        buses = [f"{module_name}:{key}" for key, value in vars(module).items() if isinstance(value, Bus)]
        choice = f"; there is {', '.join(buses)}" if buses else "; write for example bus = Bus() there"
        raise UsageError(f"{app} is no Bus{choice}")
    return bus


def imported(spec: str, form: str) -> tuple[Any, Any]:
    """A module and what ``module:name`` names in it (or None), with the current folder first; UsageError where it fails."""
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name):
        raise UsageError(f"{spec!r} is not of the form {form}")
    if "/" in module_name or module_name.endswith(".py"):
        wanted = Path(module_name).stem
        raise UsageError(f"{spec!r} names a file: write {wanted}:{name}, in the folder of {wanted}.py")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"there is no module {module_name!r} in {folder}: run the command where {module_name}.py is"
            ) from None
        raise UsageError(f"{module_name} cannot be imported: {error}; install what it needs") from None
    except (Exception, SystemExit) as error:
        raise UsageError(f"{module_name} cannot be imported: {type(error).__name__}: {error}") from None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return module, found
