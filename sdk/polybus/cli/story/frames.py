"""A recording of the story: pictures by the story's own time, which is the same on every machine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from xml.sax.saxutils import escape

from attrs import define, field, frozen
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text

from ...demo.story.scenes import Telling
from .drawing import Drawing

STEP = 0.125
"""Seconds between two pictures."""
REST = 6.0
"""Seconds for the last one, before it begins again."""
_CELL, _ROW, _EDGE = 8.0, 17.0, 16.0
"""Pixels: the width of a letter, the height of a line, the margin."""
_SPACES = "\u00a0\u00a0"
"""Two that do not become one."""
# The ground is its own, light or dark as the page around it; colours that can be read on it have a contrast of 4.5 and more.
_STYLE = """
svg{color-scheme:light dark}
text{font:13.3px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#17262a}
.page{fill:#fbfdfd;stroke:#c9d6d6}
.bold{font-weight:700}.dim{fill:#5b6c70}.cyan{fill:#0b6e86}.green{fill:#0b7a3e}.red{fill:#c0261b}.magenta{fill:#9a2c90}.yellow{fill:#8a5a00}
@media(prefers-color-scheme:dark){text{fill:#e3eeee}.page{fill:#0e191c;stroke:#2a3d42}
.dim{fill:#8fa5a9}.cyan{fill:#56cfe1}.green{fill:#69d58c}.red{fill:#ff8a80}.magenta{fill:#e39be0}.yellow{fill:#f0c36a}}
"""


@frozen
class Frame:
    """One picture and the time at which it is seen."""

    at: float
    rows: tuple[str, ...]
    """Each as SVG, but for its place."""


@define
class Recorder:
    """Takes pictures of the story while it is told to somebody, or to nobody."""

    drawing: Drawing
    frames: list[Frame] = field(factory=list)
    seconds: float = 0.0
    _telling: Telling | None = None
    _console: Console = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._console = Console(width=self.drawing.width, color_system="standard", force_terminal=True, no_color=False)

    async def show(self, telling: Telling) -> None:
        self._telling = telling

    async def pace(self, seconds: float) -> None:
        """Take pictures of so many seconds, at once."""
        assert self._telling is not None
        cast = self._telling.cast
        end = cast.now + seconds
        while cast.now < end - STEP / 2:
            self.take()
            cast.now += STEP
        cast.now = end
        self.take()

    def take(self) -> None:
        """A picture of now, if it differs from the last one."""
        assert self._telling is not None
        self.seconds = self._telling.cast.now
        self._take(self.drawing.lines(self._telling))

    def curtain(self) -> None:
        """The last picture: all that was seen."""
        assert self._telling is not None
        lines = self.drawing.curtain(self._telling)[: self.drawing.height]
        self._take([*lines, *[Text()] * (self.drawing.height - len(lines))])

    def _take(self, lines: Sequence[Text]) -> None:
        rows = tuple(self._row(line) for line in lines)
        if not self.frames or self.frames[-1].rows != rows:
            self.frames.append(Frame(self.seconds, rows))

    def _row(self, line: Text) -> str:
        """The runs of letters in a line."""
        runs, column = [], 0
        ground = self._console.get_style(line.style)
        for text, style, _ in Segment.simplify(Segment.apply_style(line.render(self._console), ground)):
            bare = text.strip()
            if bare:
                start = column + len(text) - len(text.lstrip())
                place = f'x="{_EDGE + start * _CELL:g}" textLength="{len(bare) * _CELL:g}"{_classes(style)}'
                runs.append(f"<text {place}>{escape(bare).replace('  ', _SPACES)}</text>")
            column += len(text)
        return "".join(runs)

    def svg(self, says: str) -> str:
        """All pictures as one, which moves where the reader allows it, and else is the last one.

        Args:
            says: The story in a sentence, for those who do not see it.
        """
        total = self.seconds + REST
        width, height = self.drawing.width * _CELL + 2 * _EDGE, self.drawing.height * _ROW + 2 * _EDGE
        names: dict[tuple[float, float], str] = {}
        parts: list[str] = []
        for number in range(self.drawing.height):
            y = _EDGE + number * _ROW + 13
            for start, end, row in _stretches(self.frames, number, total):
                if not row:
                    continue
                kind = ""
                if (start, end) != (0.0, total):
                    name = names.setdefault((start, end), f"k{len(names)}")
                    kind = f' class="{name}{"" if end == total else " past"}"'
                parts.append(f'<g transform="translate(0 {y:g})"{kind}>{row}</g>')
        moves = "\n".join(_moves(name, start, end, total) for (start, end), name in names.items())
        style = f"{_STYLE}.past{{visibility:hidden}}\n@media(prefers-reduced-motion:no-preference){{\n{moves}\n}}\n"
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" '
            f'role="img" aria-label="{escape(says, {chr(34): "&quot;"})}">'
        )
        page = f'<rect x="1" y="1" width="{width - 2:g}" height="{height - 2:g}" rx="10" class="page"/>'
        return "\n".join((head, f"<style>{style}</style>", page, *parts, "</svg>", ""))


def _classes(style: Style | None) -> str:
    if style is None:
        return ""
    colour = style.color.name if style.color is not None else ""
    words = [word for word, wanted in (("bold", style.bold), ("dim", style.dim and not colour), (colour, colour)) if wanted]
    return f' class="{" ".join(words)}"' if words else ""


def _stretches(frames: Sequence[Frame], number: int, total: float) -> Iterator[tuple[float, float, str]]:
    """The looks of a row, each with its begin and its end."""
    ends = [frame.at for frame in frames[1:]] + [total]
    begins = [0.0, *ends[:-1]]
    seen = [(frame.rows[number], begin, end) for frame, begin, end in zip(frames, begins, ends, strict=True)]
    for row, group in groupby(seen, key=lambda one: one[0]):
        times = list(group)
        yield times[0][1], times[-1][2], row


def _moves(name: str, start: float, end: float, total: float) -> str:
    """The rule that shows it in this time alone."""
    begin, over = f"{100 * start / total:.2f}%", f"{100 * end / total:.2f}%"
    before = "0%{visibility:hidden}" if start else ""
    after = f"{over}{{visibility:hidden}}" if end < total else ""
    shown = f"{before}{begin}{{visibility:visible}}{after}"
    return f"@keyframes {name}{{{shown}}}.{name}{{animation:{name} {total:g}s step-end infinite}}"
