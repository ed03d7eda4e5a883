"""Python in a frame, `polybus.js` in the page around it: a plain message port between them.

    make peers
    POLYBUS_SPEEDUPS=0 .venv/bin/python -m hatchling build -t wheel -d examples/pyodide/wheels
    .venv/bin/python examples/pyodide/app.py

and open http://127.0.0.1:8000. `make peers` brings Pyodide, and the wheels that polybus needs there. This server has only
files: page.html, frame.html, and frame.py, which is what runs in the frame. The page is of 127.0.0.1, the frame of
localhost: for a browser these are two sites, so that Python runs in a process of its own, and never blocks the page.
"""

import os
import sys
from pathlib import Path

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

import polybus.fastapi

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
MODULES = Path(os.environ.get("MODULES", ROOT / "tests" / "integration" / "interop" / "node" / "node_modules"))
NEEDED = Path(os.environ.get("NEEDED", ROOT / "tests" / "integration" / "pyodide" / "wheels"))
WHEEL = Path(os.environ.get("WHEEL", HERE / "wheels"))

wheels = {
    path.name: path
    for folder, names in ((NEEDED, ("anyio", "attrs", "idna", "msgspec", "typing_extensions")), (WHEEL, ("polybus",)))
    for name in names
    for path in sorted(folder.glob(f"{name}-*.whl"))
}

app = FastAPI()
app.mount("/pyodide", StaticFiles(directory=MODULES / "pyodide", check_dir=False))


@app.get("/")
async def page() -> FileResponse:
    return FileResponse(HERE / "page.html")


@app.get("/polybus.js")
async def script() -> FileResponse:
    return FileResponse(Path(polybus.__file__).parent / "javascript" / "polybus.js", media_type="text/javascript")


@app.get("/frame")
async def frame() -> FileResponse:
    return FileResponse(HERE / "frame.html")


@app.get("/frame.py")
async def program() -> FileResponse:
    return FileResponse(HERE / "frame.py", media_type="text/x-python")


@app.get("/wheels")
async def listed() -> list[str]:
    return [f"/wheels/{name}" for name in wheels]


@app.get("/wheels/{name}")
async def wheel(name: str) -> FileResponse:
    return FileResponse(wheels[name])


if __name__ == "__main__":
    for needed in (MODULES / "pyodide", NEEDED):
        if not needed.is_dir():
            sys.exit(f"{needed} is missing: make peers")
    if not any(name.startswith("polybus-") for name in wheels):
        sys.exit(f"the wheel of polybus is missing: POLYBUS_SPEEDUPS=0 {sys.executable} -m hatchling build -t wheel -d {WHEEL}")
    polybus.fastapi.run(app, port=int(os.environ.get("PORT", "8000")))
