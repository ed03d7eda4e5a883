"""Records docs/demo.svg and docs/demo-narrow.svg: the story of `polybus demo` on two terminals, one of them for telephones.

``python docs/make_demo.py`` has the story told and writes the files. It starts the processes of the demo and needs
``pip install 'polybus[cli,capture]'``. Times, ports and numbers of processes are others each time: a test compares the rest.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

import anyio

from polybus.cli.story.drawing import Drawing
from polybus.cli.story.frames import Recorder
from polybus.cli.story.page import SAYS
from polybus.cli.story.showing import Unseen
from polybus.demo.story.scenes import Telling, story_run, tell

FOLDER = Path(__file__).parent
DRAWINGS = {"demo.svg": Drawing(), "demo-narrow.svg": Drawing(46, 33)}


def record(folder: Path) -> tuple[Telling, Mapping[str, Recorder]]:
    """The story as it was told, and its recordings by the names of the files.

    Args:
        folder: For what the processes write.
    """
    recorders = {name: Recorder(drawing) for name, drawing in DRAWINGS.items()}
    view = Unseen(list(recorders.values()))
    telling = anyio.run(tell, story_run(), view, folder, folder / "capture")
    for recorder in recorders.values():
        recorder.curtain()
    return telling, recorders


def stable(picture: str) -> set[str]:
    """The words of a picture that are the same each time."""
    texts = re.findall(r"<text [^>]*>([^<]*)</text>", picture)
    return {re.sub(r"[\d,.]+", "0", word) for text in texts for word in text.replace("\u00a0", " ").split()}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        telling, recorders = record(Path(folder))
    if not telling.run.ok or not telling.traffic:
        raise SystemExit(f"the story did not hold: {telling.run}")
    for name, recorder in recorders.items():
        (FOLDER / name).write_text(recorder.svg(SAYS), encoding="utf-8")


if __name__ == "__main__":
    main()
