"""`polybus serve`"""

from __future__ import annotations

import importlib
import logging
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from .. import Bus, BusError
from .._core.bus.runner import serve_until_signal
from .._core.bus.worker import Inheritance
from .._core.runtime.lifespan import raised_by_lifespan
from ..plugins import ProtocolFeatures
from ..plugins.registry import resolve_url
from ..transports._ws.policy import check_hosts, check_origins
from .options import Ca, Insecure, Key, Origin, OwnCert, argument, duration, flag, option
from .problems import PeerError, UsageError, announce
from .reload import reloading
from .values import client_tls, server_tls

_PACKAGE: Final = Path(__file__).parents[1]

_LEVELS = ("debug", "info", "warning", "error", "critical")
_BACKENDS = ("asyncio", "trio")


def serve(
    context: typer.Context,
    app: Annotated[str, argument("APP", "module:bus, imported from the current folder.")],
    urls: Annotated[list[str], argument("URL...", "Where, for example ubre+ws://127.0.0.1:8000/bus; port 0 takes a free one.")],
    origin: Origin = None,
    host: Annotated[list[str] | None, option("H", "A further Host of a loopback server, behind a proxy; several.")] = None,
    relay: Annotated[
        list[str] | None, option("PATTERN", "Pass such publications on to other clients; several are possible.")
    ] = None,
    insecure: Insecure = False,
    ca: Ca = None,
    cert: OwnCert = None,
    key: Key = None,
    health: Annotated[str | None, option("URL", "Answer /livez and /readyz there, for example http://127.0.0.1:8081")] = None,
    metrics: Annotated[bool, flag("--metrics", "Answer /metrics beside them, for Prometheus.")] = False,
    drain: Annotated[float, duration("Seconds that running handlers get after SIGTERM.")] = 20.0,
    delay: Annotated[float, duration("Seconds before that, while /readyz says 503 and requests are still taken.")] = 0.0,
    workers: Annotated[int, option("N", "Processes that serve, of a bus with a cluster.", min=1)] = 1,
    reload: Annotated[bool, flag("--reload", "Start again when a Python file of the current folder changes.")] = False,
    log_level: Annotated[str, option("LEVEL", f"What is logged, to stderr: {', '.join(_LEVELS)}.")] = "info",
    backend: Annotated[str, option("NAME", "The event loop: asyncio or trio.")] = "asyncio",
    uvloop: Annotated[bool, flag("--uvloop", "Use uvloop, with asyncio.")] = False,
) -> None:
    """Serve a bus until SIGINT or SIGTERM, then let running handlers finish."""
    if log_level.lower() not in _LEVELS:
        raise UsageError(f"--log-level {log_level!r}: one of {', '.join(_LEVELS)}")
    if backend not in _BACKENDS:
        raise UsageError(f"--backend {backend!r}: one of {', '.join(_BACKENDS)}")
    if uvloop and backend != "asyncio":
        raise UsageError(f"--uvloop is an event loop of asyncio: leave out --backend {backend}")
    if metrics and health is None:
        raise UsageError("--metrics: the page stands beside those of --health, so give --health http://127.0.0.1:8081 too")
    if reload:
        if workers > 1:
            raise UsageError("--reload with --workers: workers are started again by themselves; while you develop, one will do")
        raise typer.Exit(reloading(context.find_root().obj, drain + delay))
    logging.basicConfig(level=log_level.upper(), format=_log_format())
    bus = load_bus(app)
    for pattern in relay or ():
        bus.relay(pattern)
    check_origins(origin or ())
    check_hosts(host or ())
    options: dict[str, Any] = {"origins": tuple(origin or ()), "hosts": tuple(host or ()), "insecure": insecure}
    if (tls := server_tls(cert, key)) is not None:
        options["tls"] = tls
    if ca is not None and not any(ProtocolFeatures.of(resolve_url(url)[0]).dials for url in urls):
        raise UsageError(
            "--ca: authorities to trust where this command connects (nats+tls), and it only listens; certificates of clients "
            "are asked for by polybus.run(bus, url, tls=...), whose context has verify_mode=ssl.CERT_REQUIRED"
        )
    try:
        serve_until_signal(
            bus,
            *urls,
            drain=drain,
            delay=delay,
            health=health,
            metrics=metrics,
            backend=backend,
            uvloop=uvloop,
            workers=workers,
            announce=_announce,
            client_tls=client_tls(ca, cert, key),
            **options,
        )
    except Exception as error:
        if raised_by_lifespan(error) and not (isinstance(error, BusError) and not _frames_here(error)):
            raise PeerError(f"the lifespan of {app} failed: {type(error).__name__}: {error}{_where(error)}") from None
        raise  # also what a cluster or store of the bus says, which begins with it


def _log_format() -> str:
    """Make the format of log lines: those of one of several workers say which it is."""
    inherited = Inheritance.of_this_process()
    who = "" if inherited is None else f" {inherited.name}"
    return f"%(asctime)s %(levelname)s{who} %(name)s: %(message)s"


def _announce(url: str) -> None:
    announce(f"serving {url}")


def _where(error: BaseException) -> str:
    """The innermost line of the application that an error comes from: below the current folder, where there is one."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({error.filename}, line {error.lineno})"
    ours = _frames_here(error) or _frames(error)[1:]  # without our own
    return f" ({ours[-1].filename}, line {ours[-1].lineno})" if ours else ""


def _frames_here(error: BaseException) -> list[traceback.FrameSummary]:
    """The lines of the application: of files below the current folder."""
    paths = [(frame, Path(frame.filename)) for frame in _frames(error) if "site-packages" not in frame.filename]
    return [frame for frame, path in paths if path.is_relative_to(Path.cwd()) and not path.is_relative_to(_PACKAGE)]


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]


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
        raise UsageError(f"{module_name} cannot be imported: {error}{_where(error)}; install what it needs") from None
    except (Exception, SystemExit) as error:
        text = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"{module_name} cannot be imported: {type(error).__name__}: {text}{_where(error)}") from None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return module, found
