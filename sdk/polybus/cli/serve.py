"""`polybus serve` and `polybus schema`, which import a bus from the current folder."""

from __future__ import annotations

import importlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from attrs import define, field

from .. import Bus, BusError
from ..cluster.worker import Inheritance
from ..integrations import raised_by_lifespan
from ..plugins import ProtocolFeatures
from ..plugins.registry import resolve_url
from ..plugins.tools import check_hosts, check_origins, ending_signals
from ..running import BusProcess
from .options import Ca, Insecure, Key, Origin, OwnCert, argument, client_tls, duration, flag, option, server_tls
from .problems import PeerError, UsageError, say
from .process import announce, start_log

_PACKAGE: Final = Path(__file__).parents[1]


def serve(
    context: typer.Context,
    app: Annotated[str, argument("APP", "Bus to serve, as module:name, imported from the current folder.")],
    urls: Annotated[
        list[str], argument("URL", "Address to serve on, for example ubre+ws://127.0.0.1:8000/bus. Port 0 picks a free port.")
    ],
    origin: Origin = None,
    host: Annotated[
        list[str] | None, option("H", "Also accept this Host header, for a loopback server behind a proxy. Can be repeated.")
    ] = None,
    relay: Annotated[
        list[str] | None, option("PATTERN", "Relay matching publications between clients. Can be repeated.")
    ] = None,
    insecure: Insecure = False,
    ca: Ca = None,
    cert: OwnCert = None,
    key: Key = None,
    health: Annotated[
        str | None, option("URL", "Serve /livez and /readyz at this address, for example http://127.0.0.1:8081.")
    ] = None,
    metrics: Annotated[bool, flag("--metrics", "Serve Prometheus metrics as /metrics on the --health address.")] = False,
    drain: Annotated[float, duration("Seconds that running handlers get to finish after SIGTERM.")] = 20.0,
    delay: Annotated[
        float, duration("Seconds to wait before draining: /readyz returns 503, but requests are still accepted.")
    ] = 0.0,
    workers: Annotated[int, option("N", "Number of processes. Several require a bus with a cluster.", min=1)] = 1,
    reload: Annotated[bool, flag("--reload", "Restart when a Python file in the current folder changes.")] = False,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error", "critical"],
        option("LEVEL", "Log level: debug, info, warning, error or critical.", case_sensitive=False),
    ] = "info",
    backend: Annotated[Literal["asyncio", "trio"], option("NAME", "Event loop: asyncio or trio.")] = "asyncio",
    uvloop: Annotated[bool, flag("--uvloop", "Use uvloop as the asyncio event loop.")] = False,
) -> None:
    """Serve a bus until SIGINT or SIGTERM, then let running handlers finish."""
    if uvloop and backend != "asyncio":
        raise UsageError(f"--uvloop only works with asyncio: leave out --backend {backend}")
    if metrics and health is None:
        raise UsageError(
            "--metrics without --health: add the address that serves the page, for example --health http://127.0.0.1:8081"
        )
    if reload:
        if workers > 1:
            raise UsageError("--reload with --workers: use only one of them; for development one process is enough")
        raise typer.Exit(reloading(context.find_root().obj, drain + delay))
    worker = Inheritance.of_this_process()
    start_log(log_level.upper(), "" if worker is None else f" {worker.name}")
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
            "--ca is for connections that this command opens (nats+tls), but it only listens; to require client "
            "certificates, use polybus.run(bus, url, tls=...) with verify_mode=ssl.CERT_REQUIRED"
        )
    try:
        BusProcess(
            bus,
            tuple(urls),
            options,
            drain=drain,
            delay=delay,
            health=health,
            metrics=metrics,
            backend=backend,
            uvloop=uvloop,
            workers=workers,
            announce=lambda url: announce(f"serving {url}"),
            client_tls=client_tls(ca, cert, key),
        ).run()
    except Exception as error:
        if raised_by_lifespan(error) and not (isinstance(error, BusError) and not _frames_here(error)):
            raise PeerError(f"the lifespan of {app} failed: {type(error).__name__}: {error}{_where(error)}") from None
        raise  # with what a cluster or store reports at the start


def _where(error: BaseException) -> str:
    """Return the file and line where an error was raised, in the application's code if possible."""
    if isinstance(error, SyntaxError) and error.filename is not None:
        return f" ({error.filename}, line {error.lineno})"
    ours = _frames_here(error) or _frames(error)[1:]  # without our own frames
    return f" ({ours[-1].filename}, line {ours[-1].lineno})" if ours else ""


def _frames_here(error: BaseException) -> list[traceback.FrameSummary]:
    paths = [(frame, Path(frame.filename)) for frame in _frames(error) if "site-packages" not in frame.filename]
    return [frame for frame, path in paths if path.is_relative_to(Path.cwd()) and not path.is_relative_to(_PACKAGE)]


def _frames(error: BaseException) -> list[traceback.FrameSummary]:
    return [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen ")]


def load_bus(app: str) -> Bus:
    """Import the bus ``module:name``. Raises `UsageError` if the import fails or the object is not a bus."""
    module, bus = imported(app, "module:bus, for example app:bus")
    if not isinstance(bus, Bus):
        meant = _meant(app, module, lambda value: isinstance(value, Bus))
        raise UsageError(f"{app} is not a Bus{meant or '; add a bus to the module, for example bus = Bus()'}")
    return bus


def _meant(app: str, module: Any, fits: Callable[[Any], bool]) -> str:
    found = [f"{app.partition(':')[0]}:{key}" for key, value in vars(module).items() if fits(value)]
    return f"; did you mean {', '.join(found)}?" if found else ""


def imported(spec: str, form: str) -> tuple[Any, Any]:
    """Import ``module:name`` with the current folder first on the path. Returns `None` if the attribute does not exist."""
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name):
        raise UsageError(f"{spec!r} does not have the form {form}")
    if "/" in module_name or module_name.endswith(".py"):
        wanted = Path(module_name).stem
        raise UsageError(f"{spec!r} names a file: write {wanted}:{name}, and run the command in the folder of {wanted}.py")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(
                f"no module {module_name!r} in {folder}: run the command in the folder of {module_name}.py"
            ) from None
        raise UsageError(f"{module_name} cannot be imported: {error}{_where(error)}; is the package installed?") from None
    except (Exception, SystemExit) as error:
        text = error.msg if isinstance(error, SyntaxError) else error
        raise UsageError(f"{module_name} cannot be imported: {type(error).__name__}: {text}{_where(error)}") from None
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    return module, found


# -- polybus schema --------------------------------------------------------------------------------------------------------


def schema(
    app: Annotated[str, argument("APP", "Bus or contract, as module:name, imported from the current folder.")],
    html: Annotated[Path | None, option("FILE", "Write an HTML page to this file instead of printing the document.")] = None,
    typescript: Annotated[bool, flag("--typescript", "Print TypeScript types instead of the document.")] = False,
    title: Annotated[str | None, option("TITLE", "Document title. Defaults to the name of the module or contract.")] = None,
    version: Annotated[str, option("V", "API version for the document.")] = "1.0.0",
    prefix: Annotated[str, option("PREFIX", "Subject prefix of the contract, as in bus.implement().")] = "",
    server: Annotated[
        list[str] | None, option("URL", "Server URL for the document, for example ubre+wss://example.org/bus. Can be repeated.")
    ] = None,
) -> None:
    """Generate an AsyncAPI 3 document of the handlers, subscriptions and publications of a bus or a contract."""
    from ..asyncapi import document, page, to_text
    from ..asyncapi import typescript as types_of
    from ..asyncapi.document import servers_of

    module, source = imported(app, "module:bus, for example app:bus")
    _check_described(app, module, source)
    name = app.partition(":")[0] if isinstance(source, Bus) else app.rpartition(":")[2]
    said = inspect.getdoc(module) or "" if isinstance(source, Bus) else ""
    servers = servers_of(server or ())
    try:
        made = document(source, title=title or name, version=version, description=said, prefix=prefix, servers=servers)
    except (TypeError, ValueError) as error:
        raise UsageError(str(error)) from None
    if html is None:
        sys.stdout.write(types_of(made) if typescript else to_text(made))
    else:
        html.write_text(page(made), encoding="utf-8")


def _check_described(app: str, module: Any, source: Any) -> None:
    if isinstance(source, Bus) or getattr(source, "_is_protocol", False):
        return

    def fits(value: Any) -> bool:
        return isinstance(value, Bus) or (getattr(value, "_is_protocol", False) and value.__module__ == module.__name__)

    raise UsageError(f"{app} is neither a Bus nor a Protocol class{_meant(app, module, fits)}")


# -- polybus serve --reload ----------------------------------------------------------------------------------------------------


_PACE: Final = 0.4
"""Seconds between two scans of the files."""
_PATIENCE: Final = 10.0
"""Seconds that a process has to exit, in addition to its drain time."""
_MOST: Final = 10_000
_SKIPPED: Final = ("__pycache__", "node_modules", "site-packages")


def look(folder: Path) -> dict[str, tuple[int, int]]:
    """Return the times and sizes of the Python files in a folder, at most `_MOST` of them."""
    seen: dict[str, tuple[int, int]] = {}
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not _is_skipped(where, name)]
        for path in (os.path.join(where, name) for name in names if name.endswith(".py")):
            if len(seen) == _MOST:
                return seen
            with suppress(OSError):  # an editor is replacing it
                status = os.stat(path)
                seen[path] = status.st_mtime_ns, status.st_size
    return seen


def _is_skipped(where: str, name: str) -> bool:
    return name.startswith(".") or name in _SKIPPED or os.path.exists(os.path.join(where, name, "pyvenv.cfg"))


def changed(before: dict[str, tuple[int, int]], after: dict[str, tuple[int, int]]) -> str | None:
    return next((path for path in {**before, **after} if before.get(path) != after.get(path)), None)


@define
class Reloader:
    """Runs a command until a signal asks this process to end, and restarts it after each change in a folder."""

    _command: list[str]
    _folder: Path
    _drain: float
    _signalled: threading.Event = field(factory=threading.Event)

    def run(self) -> int:
        for number in ending_signals():
            signal.signal(number, lambda *_: self._signalled.set())
        while True:
            seen = look(self._folder)
            # Signals of the terminal reach only this process, which forwards them once.
            process = subprocess.Popen(self._command, start_new_session=True)
            path = self._until_change(process, seen)
            status = self._end(process)
            if path is None:
                return status
            say(f"{os.path.relpath(path, self._folder)} changed: restarting")

    def _until_change(self, process: subprocess.Popen[bytes], seen: dict[str, tuple[int, int]]) -> str | None:
        ended = False
        while not self._signalled.wait(_PACE):
            if not ended and process.poll() is not None:
                ended = True
                say(f"the server exited with status {process.returncode}: waiting for a file to change")
            if (path := changed(seen, look(self._folder))) is not None:
                return path
        return None

    def _end(self, process: subprocess.Popen[bytes]) -> int:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(self._drain + _PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            return process.wait()


def reloading(arguments: list[str], drain: float) -> int:
    """Run this command line without ``--reload``, and restart it after each change. Returns the exit status."""
    command = [sys.executable, "-m", "polybus", *(argument for argument in arguments if argument != "--reload")]
    return Reloader(command, Path.cwd(), drain).run()
