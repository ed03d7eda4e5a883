"""Records docs/demo.svg and docs/demo-narrow.svg: what `polybus demo` prints, on two terminals, one of them for telephones.

``python docs/make_demo.py`` runs the command and writes the files. It needs ``pip install 'polybus[cli,capture,zenoh]'``.
Times, ports and numbers of processes are others each time.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from rich.console import Console
from rich.style import Style
from rich.text import Text

FOLDER = Path(__file__).parent
WIDTHS = {"demo.svg": 80, "demo-narrow.svg": 46}
HEIGHT = 24
LINE, PAUSE, REST = 0.12, 0.5, 6.0
"""Seconds after a line, after an empty one, and for the last picture, before it begins again."""
CELL, ROW, EDGE = 8.0, 17.0, 16.0
"""Pixels: the width of a letter, the height of a line, the margin."""
SPACES = "\u00a0\u00a0"
"""Two that do not become one."""
COLOURS = ("", "red", "green", "yellow", "blue", "magenta", "cyan", "")
"""Of a terminal, by their numbers."""
SAYS = (
    "Two programs in ten scenes: they connect, one sends a request, publications reach both desks, a slow reader slows a "
    "stream down, an invalid request is rejected, the server is killed and the caller gets an error at once, the server and "
    "the subscriptions return, a new version is deployed, a vehicle connects over Zenoh, and everything was recorded."
)
# The ground is its own, light or dark as the page around it; colours that can be read on it have a contrast of 4.5 and more.
STYLE = """
svg{color-scheme:light dark}
text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#17262a}
.page{fill:#fbfdfd;stroke:#c9d6d6}
.bold{font-weight:700}.dim{fill:#5b6c70}.cyan{fill:#0b6e86}.green{fill:#0b7a3e}.red{fill:#c0261b}.magenta{fill:#9a2c90}
.blue{fill:#1f5fa8}.yellow{fill:#8a5a00}
@media(prefers-color-scheme:dark){text{fill:#e3eeee}.page{fill:#0e191c;stroke:#2a3d42}
.dim{fill:#8fa5a9}.cyan{fill:#56cfe1}.green{fill:#69d58c}.red{fill:#ff8a80}.magenta{fill:#e39be0}
.blue{fill:#7db7ff}.yellow{fill:#f0c36a}}
"""


def told(width: int) -> list[Text]:
    """The lines of the story on a terminal so wide."""
    terminal = {"FORCE_COLOR": "1", "COLUMNS": str(width), "TERM": "xterm"}
    command = [sys.executable, "-m", "polybus", "demo"]
    made = subprocess.run(command, env=os.environ | terminal, stdout=subprocess.PIPE, text=True, check=True)
    return [Text.from_ansi(line) for line in made.stdout.splitlines()]


def picture(lines: list[Text], width: int) -> str:
    """They roll up from below where the reader allows it; else it is the end of them."""
    console = Console(width=width)
    rows = "".join(
        f'<g transform="translate(0 {number * ROW:g})">{_row(line, console)}</g>\n' for number, line in enumerate(lines) if line
    )
    times = [0.0]
    for line in lines:
        times.append(times[-1] + (LINE if line else PAUSE))
    total = times[-1] + REST
    steps = "".join(
        f"{100 * time / total:.2f}%{{transform:translateY({(HEIGHT - number) * ROW:g}px)}}"
        for number, time in enumerate(times, start=1)
        if number <= len(lines) and (number == len(lines) or lines[number - 1])
    )
    moves = f"@keyframes roll{{{steps}}}.roll{{animation:roll {total:g}s step-end infinite}}"
    end = f".roll{{transform:translateY({(HEIGHT - len(lines)) * ROW:g}px)}}"
    style = f"{STYLE}{end}\n@media(prefers-reduced-motion:no-preference){{{moves}}}\n"
    wide, high = width * CELL + 2 * EDGE, HEIGHT * ROW + 2 * EDGE
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide:g} {high:g}" width="{wide:g}" height="{high:g}" '
        f'role="img" aria-label="{SAYS}">\n<style>{style}</style>\n'
        f'<rect x="1" y="1" width="{wide - 2:g}" height="{high - 2:g}" rx="10" class="page"/>\n'
        f'<svg y="{EDGE:g}" width="{wide:g}" height="{HEIGHT * ROW:g}"><g class="roll">\n{rows}</g></svg>\n</svg>\n'
    )


def _row(line: Text, console: Console) -> str:
    """The runs of letters in a line."""
    runs, column = [], 0
    for text, style, _ in line.render(console):
        if bare := text.strip():
            start = column + len(text) - len(text.lstrip())
            place = f'x="{EDGE + start * CELL:g}" y="13" textLength="{len(bare) * CELL:g}"{_classes(style)}'
            runs.append(f"<text {place}>{escape(bare).replace('  ', SPACES)}</text>")
        column += len(text)
    return "".join(runs)


def _classes(style: Style | None) -> str:
    if style is None:
        return ""
    colour = COLOURS[(style.color.number or 0) % 8] if style.color is not None else ""
    words = [word for word, wanted in (("bold", style.bold), ("dim", style.dim and not colour), (colour, colour)) if wanted]
    return f' class="{" ".join(words)}"' if words else ""


if __name__ == "__main__":
    for name, width in WIDTHS.items():
        (FOLDER / name).write_text(picture(told(width), width), encoding="utf-8")
