"""Attaches a bus to an application, with routes, a lifespan, HTTP responses for errors, and pages for monitoring."""

from __future__ import annotations

import functools
import gzip
import hashlib
import inspect
import logging
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from importlib.metadata import version
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import anyio
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import PARAM_REGEX, WebSocketRoute, compile_path

from .. import Bus
from ..errors import BusError, Code, ConnectFailed, DeadlineExceeded, Disconnected, QueueFull, RequestError, TooLarge
from ..integrations import Operation, operations_of
from ..outcomes import code_of
from ..plugins import ProtocolFeatures
from ..plugins.registry import find_protocol, find_web_endpoint, metrics_maker
from ..plugins.tools import check_given, check_type, explains, in_own_thread, log_fields, shown, sources, texts
from ..transports.asgi import AsgiWebSocket, Receive, Scope
from ._attachment import AttachedRoute, Attachment

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.routing import Router

    from .. import Backoff
    from ..plugins import ProtocolAdapter

    Application: TypeAlias = Starlette | Router

logger: logging.Logger = logging.getLogger("polybus")

_PLAIN: Final = ("starlette.", "fastapi.", "uvicorn.")
"""Packages with middleware that does nothing after a WebSocket call returns. FastAPI's telemetry can be detected in the
scope."""
_MOST: Final = 100
"""Maximum number of middlewares of an application. An application with more is treated as watched, because its middleware chain
may be circular."""


def is_watched(scope: Scope, receive: Receive) -> bool:
    """Return True if any code before the route, except uvicorn's and Starlette's middleware, sees a connection end."""
    application = scope.get("app")
    outermost = _within(getattr(getattr(receive, "__self__", None), "app", None), application)
    router = getattr(application, "router", None)
    if outermost is None or router is None or "fastapi.telemetry" in scope:
        return True
    if _within(getattr(application, "middleware_stack", None), router) is None:
        return True
    if _within(getattr(router, "middleware_stack", None), getattr(router, "app", None)) is None:
        return True
    endpoint = scope.get("endpoint")
    # Routes of mounted or included routers have further middleware around them.
    return not any(getattr(route, "app", None) is endpoint for route in router.routes if isinstance(endpoint, AttachedRoute))


def _within(outer: Any, inner: Any) -> Any:
    """Return `inner` if all middleware around it is from `_PLAIN` packages, else None."""
    for _ in range(_MOST):
        if outer == inner:
            return inner
        called = inspect.getattr_static(type(outer), "__call__", None)
        if not str(getattr(called, "__module__", "")).startswith(_PLAIN):
            return None
        outer = getattr(outer, "app", None)
    return None


_STATUS: Final = {
    Code.INVALID_ARGUMENT: 422,
    Code.OUT_OF_RANGE: 400,
    Code.UNAUTHENTICATED: 401,
    Code.PERMISSION_DENIED: 403,
    Code.NOT_FOUND: 404,
    Code.ABORTED: 409,
    Code.ALREADY_EXISTS: 409,
    Code.FAILED_PRECONDITION: 409,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.CANCELLED: 499,
    Code.UNIMPLEMENTED: 501,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
"""HTTP status by `RequestError.code`, as google.rpc.Code defines it, except that INVALID_ARGUMENT is 422 as in FastAPI and
FAILED_PRECONDITION is 409 like every `Conflict`. Other codes are 500."""

_TOO_LARGE: Final = 413

_OF_OTHERS: Final = {401: 502, 403: 502}
"""Statuses that refer to the visitor, and the status to send instead if another program rejected this application."""


def bus_error_response(connection: HTTPConnection, error: Exception) -> JSONResponse:
    """Convert a bus error that an endpoint raised to an HTTP response. `attach` registers this function with the application.

    The body is ``{"detail": text, "code": "NOT_FOUND", "reason": ..., "faults": ...}``, with the last two only if the error has
    them. The text of an error from another program is hidden. Instead, the response contains an id, and the log has the
    details under this id. The status is kept, except that 401 and 403 become 502, because it was not the visitor who was
    rejected. To pass such an error on deliberately, use ``raise error.relay()``.

    Raises:
        Exception: The error itself, if it is not from a request, or if the connection is a WebSocket.
    """
    status = status_of(error)
    if status is None or not isinstance(connection, Request):
        raise error
    if _is_of_others(error):
        error_id = sources.get().urandom(4).hex()
        text, fields = "%s %s failed [%s] because a service behind it failed: %s", log_fields(error_id=error_id)
        logger.error(text, connection.method, connection.url.path[:200], error_id, error, extra=fields)
        detail = f"a service behind this one failed [{error_id}]"
        return JSONResponse({"detail": detail, "code": code_of(error).name}, status_code=_OF_OTHERS.get(status, status))
    said: dict[str, Any] = {"detail": getattr(error, "text", "") or str(error), "code": code_of(error).name}
    if isinstance(error, RequestError):
        said |= {name: value for name, value in (("reason", error.reason), ("faults", error.detail)) if value is not None}
    return JSONResponse(said, status_code=status)


def _is_of_others(error: Exception) -> bool:
    if isinstance(error, DeadlineExceeded):
        return error.where == "remote"
    return not isinstance(error, RequestError) or error.foreign


def status_of(error: Exception) -> int | None:
    if isinstance(error, TooLarge):
        return _TOO_LARGE  # clients would retry a 429
    answer = isinstance(error, (RequestError, DeadlineExceeded, ConnectFailed, Disconnected, QueueFull))
    return _STATUS.get(code_of(error), 500) if answer else None


def answer_errors(app: Any) -> None:
    handlers = getattr(app, "exception_handlers", None)
    if isinstance(handlers, dict) and BusError not in handlers:
        app.add_exception_handler(BusError, bus_error_response)


_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
_SCRIPT = "polybus-script"
_FRAMES: Final = "polybus-frames.js"
_DOCS_HEADERS: Final = {"cache-control": "no-cache", "referrer-policy": "no-referrer", "x-content-type-options": "nosniff"}
_INSTEAD: Final = {
    "url": "give path='/bus' and protocol='ubre'",
    "prefix": "path= is the whole path after the prefix of the router",
    "authenticate": "pass it to the bus: Bus(authenticate=...)",
}
"""Advice for unknown arguments of `attach`."""


@explains("attach", _INSTEAD)
def attach(
    app: Application,
    bus: Bus,
    path: str = "/bus",
    protocol: str | ProtocolAdapter = "ubre",
    *,
    origins: Iterable[str] = (),
    hosts: Iterable[str] = (),
    when_full: str = "drop_oldest",
    insecure: bool = False,
    retry: Backoff | None = None,
    script: str | None = None,
    docs: str | None = None,
    try_it: bool = False,
) -> None:
    """Serve a bus in an application.

    The bus runs within the application's lifespan, so it starts after the application's own resources and drains before they
    are released. If no lifespan runs, the first connection starts it. You can attach a bus at several paths, and several buses
    to one application. If an endpoint does not catch an error of the bus, the error becomes an HTTP response
    (`bus_error_response`), unless the application has a handler for `BusError`.

    Args:
        app: A FastAPI or Starlette application, or an APIRouter or Router.
        bus: Bus to serve.
        path: Path, without the prefix of the router.
        protocol: Name of the protocol, or an object with options such as ``Ubre(format="binary")``.
        origins: Web origins of pages that may connect, in addition to the same host and port.
        hosts: Additional ``Host`` values for a server that listens on a loopback address behind a proxy.
        when_full: Policy for publications when the outbox of a peer is full: ``drop_oldest``, ``drop_newest``, ``disconnect``.
        insecure: Accept connections from other machines, directly or through a proxy, without an `authenticate` hook.
        retry: Pauses before polybus clients reconnect. `initial` and `maximum` override the settings of the clients.
        script: Path for the browser client, such as ``/polybus.js``, without the prefix of the router. ``polybus-frames.js`` is
            served beside it. Browsers cache them permanently if ``?v=`` is the version of polybus.
        docs: Path for a page about the subjects of the bus, such as ``/bus/docs``. Its AsyncAPI document is at the same path
            with ``.json``. Both are public, like FastAPI's own page.
        try_it: Let that page send requests as a client of the bus, with the visitor's cookies or token and subject to
            `authorize`.

    Raises:
        TypeError: If `app` is not an application or router, `bus` is not a bus, or an option has the wrong type.
        ValueError: If an option is invalid, or the path is already in use.
    """
    router = _router_of(app)
    if not isinstance(bus, Bus):
        raise TypeError(f"attach(app, bus) takes a polybus.Bus, not {type(bus).__name__}")
    origins = texts(origins, "origins", "https://example.org")
    hosts = texts(hosts, "hosts", "example.org")
    if script is not None:
        _check_script(script)
    check_type(try_it, bool, "try_it", "try_it=True")
    if try_it and docs is None:
        raise ValueError("try_it=True is for the page at docs=, for example docs='/bus/docs'")
    path = _full_path(router, path)
    adapter = find_protocol(protocol, {})
    if ProtocolFeatures.of(adapter).dials:
        raise ValueError(
            f"protocol={shown(protocol)}: the bus connects to a server for this protocol and cannot serve a path: "
            "connect(url, bus=bus) in the lifespan of the bus, or polybus.run(bus, url)"
        )
    endpoint = find_web_endpoint(adapter, path) or AsgiWebSocket(path, is_watched)
    serve = functools.partial(
        bus.serve, endpoint, protocol=adapter, origins=origins, hosts=hosts, when_full=when_full, insecure=insecure, retry=retry
    )
    serve()  # raises for wrong options; never entered
    if docs is not None:
        _add_docs(app, router, bus, docs, path=path, adapter=adapter, try_it=try_it)
    attachment = Attachment(bus, serve, insecure)
    for route in endpoint.routes():
        attached: Any = AttachedRoute(attachment, route.app)
        where = path.rstrip("/") + route.path if route.path else path
        if route.methods is None:
            router.add_websocket_route(where, attached, name="polybus")
        else:
            router.add_route(where, attached, methods=list(route.methods), name="polybus", include_in_schema=False)
    if script is not None:
        _add_script(router, script)
    _compose(router, attachment)
    answer_errors(app)


def _router_of(app: Application) -> Any:
    router = getattr(app, "router", app)
    if not all(hasattr(router, name) for name in ("add_websocket_route", "add_route", "lifespan_context", "routes")):
        raise TypeError(
            f"attach() takes a FastAPI or Starlette application, or an APIRouter or Router, not {type(app).__name__}: "
            "attach before the application is wrapped into something else"
        )
    return router


def _full_path(router: Any, path: Any) -> str:
    """Return the path with the APIRouter's own prefix, which FastAPI adds only to its own kinds of routes."""
    check_given(path, str, "path", "path='/bus'")
    if not path.startswith("/"):
        raise ValueError(f"path={path!r} must begin with a slash, as in '/bus'")
    if "?" in path or "#" in path:
        raise ValueError(f"path={path!r} must be a path without '?' and '#'")
    if set("{}") & set(PARAM_REGEX.sub("", path)):
        raise ValueError(f"path={path!r}: braces are for parameters, as in '/rooms/{{room}}/bus'")
    try:
        compile_path(path)
    except (AssertionError, ValueError) as error:
        raise ValueError(f"path={path!r}: {error}") from None
    full = f"{getattr(router, 'prefix', '')}{path}"
    for route in router.routes:
        if getattr(route, "path", None) == full:
            if isinstance(getattr(route, "endpoint", None), AttachedRoute):
                raise ValueError(f"a bus is already attached at {full}: use another path")
            if isinstance(route, WebSocketRoute):
                raise ValueError(f"path={path!r}: the application has a WebSocket route at {full}: use another path")
    return full


def _compose(router: Any, attachment: Attachment) -> None:
    inner = router.lifespan_context

    @asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[Any]:
        async with inner(app) as state, attachment.running(app):
            yield state

    router.lifespan_context = lifespan


def _check_script(path: Any) -> None:
    check_given(path, str, "script", "script='/polybus.js'")
    if not path.startswith("/"):
        raise ValueError(f"script={path!r} must begin with a slash, as in '/polybus.js'")
    if "?" in path or "#" in path or posixpath.basename(path) == _FRAMES:
        raise ValueError(f"script={path!r} must be a path such as '/polybus.js'; {_FRAMES} is served beside it")


def _add_script(router: Any, path: str) -> None:
    """Serve both modules without access control. They are not secret, and sandboxed frames without an origin import them."""
    path = f"{getattr(router, 'prefix', '')}{path}"
    if any(getattr(route, "name", None) == _SCRIPT and route.path == path for route in router.routes):
        return  # another bus of the application added them
    for place, file in ((path, "polybus.js"), (posixpath.join(posixpath.dirname(path), _FRAMES), _FRAMES)):
        router.add_route(place, _module(file), methods=["GET"], name=_SCRIPT, include_in_schema=False)


def _add_docs(app: Any, router: Any, bus: Bus, docs: str, *, path: str, adapter: ProtocolAdapter, try_it: bool) -> None:
    """Serve the page, and the document at the same path with ``.json``. Raises an error for a wrong path."""
    from ..asyncapi.page import policy  # few applications have such a page

    check_type(docs, str, "docs", "docs='/bus/docs'")
    if not docs.startswith("/") or "?" in docs or "#" in docs or "{" in docs:
        raise ValueError(f"docs={shown(docs)} must be a path such as '/bus/docs'")
    here = f"{getattr(router, 'prefix', '')}{docs}"
    taken = {path, *(getattr(route, "path", None) for route in router.routes)}
    if found := taken & {here, f"{here}.json"}:
        raise ValueError(f"docs={docs!r}: {min(map(str, found))} is already in use, so choose another path for the page")
    if try_it:
        _check_live(adapter, path)
    made = _Documents(
        bus,
        _live_address(here, path) if try_it else None,
        title=getattr(app, "title", "") or "polybus",
        version=getattr(app, "version", "") or "1.0.0",
        protocol=adapter.name,
    )

    async def show(request: Any) -> Response:
        _, html = await made.current()
        headers = {**_DOCS_HEADERS, "content-security-policy": f"{policy(html)}; frame-ancestors 'none'"}
        return Response(html, media_type="text/html", headers=headers)

    async def give(request: Any) -> Response:
        text, _ = await made.current()
        return Response(text, media_type="application/json", headers=_DOCS_HEADERS)

    router.add_route(here, show, methods=["GET"], name="polybus-docs", include_in_schema=False)
    router.add_route(f"{here}.json", give, methods=["GET"], name="polybus-document", include_in_schema=False)


def _check_live(adapter: ProtocolAdapter, path: str) -> None:
    if adapter.name != "ubre" or getattr(adapter, "format", "json") == "binary":
        raise ValueError(
            f"try_it=True: the page needs UBRE in JSON, but {path} serves {adapter!r}: attach the bus with UBRE too"
        )
    if "{" in path:
        raise ValueError(f"try_it=True: the page cannot fill in the parameters of {path!r}: omit try_it")


def _live_address(docs: str, path: str) -> str:
    """Return the address of the bus relative to the page, so that it works behind proxies and in mounted applications."""
    return posixpath.join(posixpath.relpath(posixpath.dirname(path), posixpath.dirname(docs)), posixpath.basename(path))


class _Documents:
    def __init__(self, bus: Bus, live: str | None, **info: str) -> None:
        self._bus = bus
        self._live = live
        self._info: dict[str, Any] = {**info}
        self._known: tuple[Operation, ...] | None = None
        self._made = "", ""
        self._making = anyio.Lock()

    async def current(self) -> tuple[str, str]:
        """Return the document and the page, built in a thread: thousands of handlers take seconds."""
        async with self._making:
            return await in_own_thread(self._make)

    def _make(self) -> tuple[str, str]:
        from ..asyncapi import document, page, to_text

        known = operations_of(self._bus)
        if known != self._known:
            made = document(self._bus, **self._info)
            self._made, self._known = (to_text(made), page(made, live=self._live)), known
        return self._made


def _takes_gzip(accepted: str) -> bool:
    weights = (one.partition(";q=") for one in accepted.lower().replace(" ", "").split(","))
    return any(name == "gzip" and (not mark or weight.strip("0.") != "") for name, mark, weight in weights)


def _module(file: str) -> Callable[[Request], Awaitable[Response]]:
    """Create the endpoint for a file of polybus. It answers 304 if the browser has cached the file."""
    content = files("polybus").joinpath("javascript", file).read_bytes()
    packed, tag = gzip.compress(content, mtime=0), f'W/"{hashlib.sha256(content).hexdigest()[:20]}"'
    ours = version("polybus")
    common = {"access-control-allow-origin": "*", "etag": tag, "vary": "accept-encoding", "x-content-type-options": "nosniff"}

    async def javascript(request: Request) -> Response:
        # Only the same version may be cached, because several versions may run behind a load balancer for a while.
        kept = request.query_params.get("v") == ours
        headers = {**common, "cache-control": "public, max-age=31536000, immutable" if kept else "no-cache"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        if not _takes_gzip(request.headers.get("accept-encoding", "")):
            return Response(content, media_type="text/javascript", headers=headers)
        return Response(packed, media_type="text/javascript", headers={**headers, "content-encoding": "gzip"})

    return javascript


def metrics_endpoint(bus: Bus) -> Callable[[Request], Awaitable[Response]]:
    """Create an endpoint for Prometheus: ``app.add_route("/metrics", metrics_endpoint(bus))``

    It returns the text of `polybus.prometheus.scrape`, which covers all workers of the application. The endpoint has no access
    control of its own.

    Raises:
        ImportError: If prometheus-client is not installed.
        TypeError: If `bus` is not a bus.
    """
    check_given(bus, Bus, "bus", "metrics_endpoint(bus)")
    scrape = metrics_maker("scrape", "metrics_endpoint()")

    async def metrics(request: Request) -> Response:
        return Response(await scrape(bus), media_type=_METRICS)

    return metrics


def readiness_endpoint(bus: Bus) -> Callable[[Request], Awaitable[Response]]:
    """Create a readiness endpoint for load balancers: ``app.add_route("/readyz", readiness_endpoint(bus))``

    The endpoint returns 200, or 503 with `Bus.why_not_ready`, for the worker that receives the request.

    Raises:
        TypeError: If `bus` is not a bus.
    """
    check_given(bus, Bus, "bus", "readiness_endpoint(bus)")

    async def readiness(request: Request) -> Response:
        why = bus.why_not_ready
        return PlainTextResponse(f"{why}\n" if why else "OK\n", 503 if why else 200)

    return readiness
