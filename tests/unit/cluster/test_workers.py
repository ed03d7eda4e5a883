"""Several workers: the program that is started again, and which buses an application has."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Mount

from polybus import Bus, LocalProtocolError
from polybus.cluster.workers import this_program
from polybus.fastapi import attach
from polybus.fastapi._attachment import attachments_of
from polybus.fastapi._server import buses_of

pytestmark = pytest.mark.native


def test_the_program_is_started_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    main = ModuleType("__main__")
    main.__file__ = "app.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-X", "dev", "app.py", "--port", "1"])
    assert this_program() == [sys.executable, "-X", "dev", "app.py", "--port", "1"]


@pytest.mark.parametrize("facts", [{}, {"__file__": None}, {"__file__": "<stdin>"}])
def test_one_that_was_typed_in_is_refused_with_what_to_do(facts: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "__main__", SimpleNamespace(**facts))
    monkeypatch.setattr(sys, "argv", [""])
    with pytest.raises(LocalProtocolError, match="it is not in a file"):
        this_program()
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(sys, "orig_argv", ["python3", "-c", "run()"])
    assert this_program()[1:] == ["-c", "run()"]


def test_the_buses_of_an_application_are_found_behind_routers_mounts_and_middleware() -> None:
    first, second, third = Bus(), Bus(), Bus()
    inner, outer, router = FastAPI(), Starlette(), APIRouter(prefix="/v1")
    attach(inner, first)
    attach(inner, first, path="/again")
    attach(router, second)
    inner.include_router(router)
    outer.mount("/inner", inner)
    attach(outer, third)
    assert {*buses_of(CORSMiddleware(outer))} == {first, second, third}
    outer.routes.append(Mount("/wrapped", inner, middleware=[Middleware(CORSMiddleware)]))
    assert [attachment.bus for attachment in attachments_of(outer, own=True)] == [third]
    assert [*buses_of(FastAPI())] == []
