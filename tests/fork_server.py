"""A fork server: Python programs of the tests begin as a fork of a process that has imported what they need.

Such a program is ready in 20 ms where an interpreter takes 0.3 to 0.6 s. It is a child of the process that asked, has the
arguments, folder, environment and files that it was given, and ends as any interpreter does. What depends on how an interpreter
begins (which modules are loaded, its memory) is marked `own_interpreter`; `make test-all` forks nothing. A program that starts
programs itself, as a process with workers does, has a server of its own: a fork of it that was made before it began.

Imported, this file is the client; run, it is the server. Only Linux makes a grandchild a child: elsewhere nothing is forked.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import fcntl
import gc
import importlib
import io
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import types
import warnings
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

__all__ = ["LOADED", "may_fork"]

MODULES: Final = (
    "anyio._backends._asyncio anyio._backends._trio fastapi httpx msgspec numpy pyarrow.parquet rich.console typer uvicorn "
    "uvloop polybus.broker polybus.capture polybus.capture.writer.main polybus.cli.app polybus.cli.bench polybus.demo "
    "polybus.fastapi polybus.sync polybus.testing polybus.transports.tcp polybus.transports.websocket"
).split()
"""What programs need, so far as it is installed."""

LOADED: Final = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
"""For pytest's option `-W`, where it need not rewrite what the fork server has loaded."""

_PYTHON: Final = sys.executable
_SUBREAPER: Final = 36
_MOST: Final = 1 << 16
_FILES: Final = 32
_STARTERS: Final = ("workers", "demo", "--reload", "sys.stdin.readline")
"""Words in the arguments of programs that start others; the last is of a worker of pytest-xdist."""
_RESOURCES: Final = sorted({getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")})


# -- the client --------------------------------------------------------------------------------------------------------


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(each) for each in _RESOURCES]


def _read_at_start(environment: dict[str, str]) -> dict[str, str]:
    """What an interpreter reads as it begins: the server has."""
    names = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC")
    return {name: value for name, value in environment.items() if name.startswith(names) and name != "PYTHONUNBUFFERED"}


class _Server:
    """The process that forks, for the process that asks."""

    def __init__(self, connection: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self.owner = os.getpid()
        self.environment = _read_at_start(dict(os.environ))
        self.limits = _limits()
        self._prctl = ctypes.CDLL(None).prctl
        self._connection, self._process = connection, process  # which ends with the connection

    def start(self, program: bytes, files: Sequence[int]) -> int:
        """The number of the new process."""
        # It is forked twice, and becomes ours when the process between has ended.
        self._prctl(_SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(self._connection, [program], files)
            answer = self._connection.recv(_MOST)
        finally:
            self._prctl(_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise RuntimeError("the fork server has ended")
        return int(answer)


def _begun() -> _Server:
    """A server that has just been started."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [_PYTHON, "-W", "error", __file__, str(theirs.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()], start_new_session=True)
    return _Server(ours, process)


_execute: Any = getattr(subprocess, "_fork_exec", None)
_server: _Server | None = None
_lock = threading.RLock()


def may_fork(allowed: bool) -> None:
    """Say whether programs that start from now on may be forks."""
    if _execute is not None:
        vars(subprocess)["_fork_exec"] = _fork if allowed else _execute


def _options(command: list[str]) -> dict[str, Any] | None:
    """How the interpreter is called, where a fork can begin in the same way."""
    found: dict[str, Any] = {"-I": False, "-u": False, "-X": False, "-W": []}
    rest = command[1:]
    while rest and rest[0] in found:
        option = rest.pop(0)
        if option == "-W":
            found[option].append(rest.pop(0))
        elif option == "-X" and rest.pop(0) != "faulthandler":
            return None
        else:
            found[option] = True
    if len(rest) > 1 and rest[0] in ("-m", "-c"):
        found |= {"kind": rest[0], "what": rest[1], "arguments": rest[2:]}
    elif rest and not rest[0].startswith("-"):
        found |= {"kind": "file", "what": rest[0], "arguments": rest[1:]}
    else:
        return None
    kind, what = found["kind"], found["what"]
    if kind == "-m":  # pytest warns of modules that were loaded before it, unless it is told not to
        about_imports = what == "pytest" and LOADED not in found["arguments"]
    else:
        about_imports = kind == "-c" and ("sys.modules" in what or "sys.meta_path" in what)
    return None if about_imports else found


def _fork(*given: Any) -> int:
    """Take the place of `fork_exec` of `subprocess`: a fork of the server where that comes to the same."""
    global _server
    command, executables, _, keep, folder, environment = given[:6]
    plain = executables == (os.fsencode(_PYTHON),) and given[17:22] == (None, None, None, -1, None)
    options = _options([os.fsdecode(each) for each in command]) if plain else None
    ends = [end if end != -1 else standard for end, standard in zip((given[6], given[9], given[11]), range(3), strict=True)]
    further = sorted({*keep} - {given[13]})
    if options is None or not all(map(_is_open, ends)) or len(further) > _FILES - 3 or options["what"] == __file__:
        return int(_execute(*given))
    with _lock:
        if _server is None or _server.owner != os.getpid():
            _server = _begun()
        pairs = dict(os.environ) if environment is None else dict(os.fsdecode(each).split("=", 1) for each in environment)
        folder = os.getcwd() if folder is None else os.fsdecode(folder)
        place = {"folder": folder, "environment": pairs, "files": further, "session": bool(given[15]), "group": given[16]}
        program = json.dumps({**options, **place, "starts": _starts_others(options)}).encode()
        same = _read_at_start(pairs) == _server.environment and _limits() == _server.limits
        if same and len(program) < _MOST and Path(folder).is_dir():
            return _server.start(program, [*ends, *further])
    return int(_execute(*given))


def _starts_others(options: dict[str, Any]) -> bool:
    return any(word in each for word in _STARTERS for each in (options["what"], *options["arguments"]))


def _is_open(file: int) -> bool:
    try:
        os.fstat(file)
    except OSError:
        return False
    return True


# -- the server --------------------------------------------------------------------------------------------------------


def _serve(connection: socket.socket) -> dict[str, Any]:
    """Fork for each program that is asked for; returns what to run, in the fork."""
    while True:
        program, files, _, _ = socket.recv_fds(connection, _MOST, _FILES)
        if not program:
            os._exit(0)
        reading, writing = os.pipe()
        between = os.fork()
        if between == 0:
            between = os.getpid()
            ours = os.fork()
            if ours:
                os.write(writing, b"%d" % ours)
                os._exit(0)
            while os.getppid() == between:  # until the process that asked is its parent, as with any other child
                time.sleep(0.0005)
            os.close(reading)
            os.close(writing)
            connection.close()
            asked = dict(json.loads(program))
            _take(files, [0, 1, 2, *asked["files"]])
            return asked
        os.waitpid(between, 0)
        connection.send(os.read(reading, 100))
        for file in (*files, reading, writing):
            os.close(file)


def _take(files: list[int], places: list[int]) -> None:
    """Have these open files where they are expected."""
    above = [fcntl.fcntl(file, fcntl.F_DUPFD, max(places) + 1) for file in files]
    for file in files:
        os.close(file)
    for file, place in zip(above, places, strict=True):
        os.dup2(file, place)
        os.close(file)


def _begin_server() -> dict[str, Any] | None:
    """Give this program, which has not begun, a server of its own; in the forks of that one, returns what to run."""
    global _server
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        os.setsid()
        ours.close()
        with open(os.devnull, "r+b", buffering=0) as nothing:
            for standard in range(3):
                os.dup2(nothing.fileno(), standard)
        return _serve(theirs)
    theirs.close()
    _server = _Server(ours)
    may_fork(True)
    return None


def _filter_warnings(options: list[str]) -> None:
    """Put these in the place of the server's own `-W error`."""
    filters = [*warnings.filters]
    own = next(number for number, each in enumerate(filters) if each[0] == "error" and each[2] is Warning)
    sys.warnoptions[:] = options
    warnings.resetwarnings()
    added: Any = warnings.filters
    added.extend(filters[own + 1 :])
    getattr(warnings, "_processoptions")(options)  # noqa: B009
    added[:0] = filters[:own]


def _begin(program: dict[str, Any], path: list[str]) -> None:
    """Become an interpreter that has just begun."""
    if program["session"]:
        os.setsid()
    if program["group"] >= 0:
        os.setpgid(0, program["group"])
    os.chdir(program["folder"])
    os.environ.clear()
    os.environ.update(program["environment"])
    unbuffered = program["-u"] or bool(os.environ.get("PYTHONUNBUFFERED"))
    for name, file, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        old = getattr(sys, name)
        text = io.TextIOWrapper(
            open(file, mode + "b", buffering=0 if unbuffered and mode == "w" else -1, closefd=False),
            encoding=old.encoding,
            errors=old.errors,
            line_buffering=name == "stderr" or os.isatty(file),
            write_through=unbuffered and mode == "w",
        )
        setattr(sys, name, text)
        setattr(sys, f"__{name}__", text)
    _filter_warnings(program["-W"])
    if program["-X"]:
        faulthandler.enable()
    sys.argv = [{"-c": "-c", "-m": "-m", "file": program["what"]}[program["kind"]], *program["arguments"]]
    kind = [] if program["kind"] == "file" else [program["kind"]]
    options = [option for option in ("-I", "-u") if program[option]] + [f"-W{each}" for each in program["-W"]]
    sys.orig_argv = [_PYTHON, *options, *kind, program["what"], *program["arguments"]]
    first = {"-c": "", "-m": program["folder"], "file": str(Path(program["what"]).resolve().parent)}[program["kind"]]
    sys.path[:] = path if program["-I"] else [first, *path]
    sys.modules["__main__"] = types.ModuleType("__main__")


def _execute_program(program: dict[str, Any]) -> None:
    kind, what, names = program["kind"], program["what"], vars(sys.modules["__main__"])
    if kind == "-m":
        getattr(runpy, "_run_module_as_main")(what)  # noqa: B009  # what the interpreter itself calls
    elif kind == "-c":
        exec(compile(what, "<string>", "exec"), names)
    else:
        names["__file__"] = what
        exec(compile(Path(what).read_bytes(), what, "exec"), names)


def _run(program: dict[str, Any]) -> int:
    """Run it as an interpreter does; returns its exit status, of a signal a negative one."""
    try:
        _execute_program(program)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return (end.code or 0) & 0xFF
        print(end.code, file=sys.stderr)
        return 1
    except BaseException as error:
        frames = error.__traceback__
        while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
            frames = frames.tb_next
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _end(status: int) -> None:
    """End as an interpreter does, but take no module apart: that takes longer than most programs run."""
    getattr(threading, "_shutdown")()  # noqa: B009
    getattr(atexit, "_run_exitfuncs")()  # noqa: B009
    vars(sys.modules["__main__"]).clear()
    gc.collect()  # what the program has left open is said
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except (OSError, ValueError):
            status = status or 120
    if status < 0:
        signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


def main() -> None:
    """The server, and each program."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    path = sys.path[1:]
    connection = socket.socket(fileno=int(sys.argv[1]))
    # Some libraries have threads of their own, which nobody uses before the fork: Python 3.12 warns of them.
    warnings.filterwarnings("ignore", ".*use of fork", DeprecationWarning)
    for module in MODULES:
        with suppress(ImportError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    program: dict[str, Any] | None = _serve(connection)
    begun = program
    while program is not None:
        begun = program
        program = _begin_server() if begun["starts"] else None
    assert begun is not None
    if begun["starts"]:
        gc.unfreeze()  # a worker of the tests asks who refers to what, and freezes by itself
    _begin(begun, path)
    _end(_run(begun))


if __name__ == "__main__":
    main()
