"""One picture of the story: lines of a terminal, of any width and height."""

from __future__ import annotations

from collections.abc import Iterable

from attrs import frozen
from rich.cells import cell_len, set_cell_size
from rich.text import Text

from ..._validation import in_one_line
from ...demo.story.cast import DESKS, Actor, Arrow, Kind, Line
from ...demo.story.programs import Excerpt
from ...demo.story.scenes import FLIGHT, SCENES, Telling

WIDTH, HEIGHT = 80, 24
"""Of the terminal that it is made for."""
NEXT = {
    "polybus demo --show": "the programs",
    "polybus demo --browser": "this story as a page",
    "polybus demo --all": "every protocol over every transport, checked",
}
_WIDE = 72
_KEYWORDS = r"\b(async|await|break|def|except|for|if|import|in|return|try|while|with|yield|as|from|print)\b"
_COLOURS: dict[Kind, str] = {"ask": "cyan", "answer": "green", "failure": "red", "publication": "magenta"}
_STATES = {"not yet": "", "here": "process", "killed": "killed", "ended": "has left"}
_OUTCOMES = {"ok": ("✓", "green"), "failed": ("✗", "bold red"), "not here": ("–", "dim"), "running": ("●", "bold cyan")}
_ASCII = str.maketrans("─┄▶◀✗✓●·–│┐┘├", "-.><xv*.-||||")


@frozen
class Drawing:
    """Draws the story in a size.

    Args:
        width, height: Columns and rows; never are there more.
        plain: Letters of ASCII alone, for terminals that have no others.
    """

    width: int = WIDTH
    height: int = HEIGHT
    plain: bool = False

    def lines(self, telling: Telling) -> list[Text]:
        """The picture: as many lines as are high, none wider than is wide."""
        head = [self._head(telling), Text("─" * self.width, style="dim")]
        foot = [Text(), *self._marks(telling)]
        stage = [*self._stage(telling), Text("─" * self.width, style="dim")]
        words = self._words(telling)
        code = [Text(), *self.code(telling.scene.code)]
        said = [Text(), *self._said(telling)]
        room = self.height - len(head) - len(foot) - len(words)
        # In a low terminal the drawing goes first, then the code: what was said stays.
        if room < len(stage) + len(code) + min(len(said), 4):
            stage = [] if room < len(stage) + min(len(said), 4) else stage
            code = code[: max(0, room - len(stage) - len(said))]
        room -= len(stage) + len(code)
        said = said if len(said) <= room else said[len(said) - room :] if room > 0 else []
        body = [*head, *stage, *words, *code, *said]
        body += [Text()] * (self.height - len(body) - len(foot))
        return [self._fitting(line) for line in [*body, *foot]][: self.height]

    # -- above -----------------------------------------------------------------------------------------------------------

    def _head(self, telling: Telling) -> Text:
        what = "  two programs, real processes, real sockets" if self.width >= _WIDE else ""
        name = Text.assemble(("polybus demo", "bold"), (what, "dim"))
        when = f"{telling.number + 1}/{len(SCENES)} {telling.cast.now:4.0f} s"
        return self._apart(name, Text(when, style="dim"))

    def curtain(self, telling: Telling) -> list[Text]:
        """The whole story at its end, and what to look at next: as many lines as it needs."""
        run = telling.run
        rows: list[Text] = []
        for name, step in run.steps.items():
            sign, style = _OUTCOMES.get(step.outcome, ("·", "dim"))
            seen = Text.assemble((sign, style), " ", (f"{name:9}", "bold"), in_one_line(step.detail))
            rows += self._wrapped(seen, indent=11)
        if telling.traffic:
            rows += [Text(), *self.table(telling.traffic)]
        held = sum(step.outcome == "ok" for step in run.steps.values())
        said = f"{held} of {len(run.steps)} scenes held in {max(telling.seconds, telling.cast.now):.0f} s"
        rows += [Text(), Text(said, style="bold green" if run.ok else "bold red"), Text()]
        for command, what in NEXT.items():
            rows += self._wrapped(Text.assemble((f"{command:24}", "cyan"), what), indent=2)
        return [self._fitting(row) for row in rows]

    def _apart(self, left: Text, right: Text) -> Text:
        room = self.width - right.cell_len
        left.truncate(max(0, room - 1))
        left.pad_right(room - left.cell_len)
        return left.append_text(right)

    def _stage(self, telling: Telling) -> list[Text]:
        """Two desks at the left, the plant at the right, and the wires between."""
        cast = telling.cast
        wide = self.width >= _WIDE
        left, right = (17, 18) if wide else (8, 10)
        wire = self.width - left - right
        rows: list[Text] = []
        plant = cast.actors["plant"]
        beside = ["", "plant.py" if wide else "plant", self._state(plant, wide), "", ""]
        for desk in DESKS:
            actor = cast.actors[desk]
            names = Text.assemble((desk, "bold"), ("  desk.py" if wide else "", "dim"))
            out, back = self._wires(cast.arrows[desk], cast.linked[desk], actor, cast.now, wire - 2)
            for name, drawn in ((names, out), (Text.assemble((self._state(actor, wide), "dim")), back)):
                name.truncate(left - 1)
                name.pad_right(left - name.cell_len)
                rows.append(name.append(" ").append_text(drawn).append(" "))
            if desk != DESKS[-1]:
                rows.append(Text(" " * (left + wire)))
        for row, text, edge in zip(rows, beside, "┐│├│┘", strict=True):
            style = "bold" if text.startswith("plant") else "red" if plant.state == "killed" else "dim"
            row.append(edge if plant.state == "here" else " ", style="dim").append(f" {text}", style=style)
        return rows

    def _state(self, actor: Actor, wide: bool) -> str:
        word = _STATES[actor.state]
        if not wide:
            return {"process": str(actor.pid), "has left": "left"}.get(word, word)
        return f"{word} {actor.pid}" if word == "process" else word

    def _wires(self, arrows: Iterable[Arrow], linked: bool, actor: Actor, now: float, width: int) -> tuple[Text, Text]:
        """The way there and the way back."""
        there, back = Text(), Text()
        if actor.state != "here":
            return Text(" " * width), Text(" " * width)
        if not linked:
            there = Text(" ✗ ".center(width, "┄"), style="red")
        else:
            there = Text("┄" * width, style="dim")
        asked = [arrow for arrow in arrows if arrow.outward]
        for arrow in arrows:
            born = arrow.born
            if not arrow.outward and asked:
                born = max(born, asked[-1].born + FLIGHT)
            share = min(1.0, max(0.0, (now - born) / FLIGHT))
            drawn = _arrow(arrow, share, width)
            if arrow.outward and linked:
                there = drawn
            elif not arrow.outward:
                back = drawn
        for text in (there, back):
            text.truncate(width)
            text.pad_right(width - text.cell_len)
        return there, back

    # -- below -----------------------------------------------------------------------------------------------------------

    def _words(self, telling: Telling) -> list[Text]:
        scene = telling.scene
        title = Text.assemble((f"{telling.number + 1} ", "cyan"), (scene.title, "bold"))
        return [*self._wrapped(title), *self._wrapped(Text(scene.why))]

    def code(self, excerpts: Iterable[Excerpt]) -> list[Text]:
        """The lines of programs, with the name of the file beside them, or above where it is narrow."""
        beside = 10 if self.width >= _WIDE else 0
        rows: list[Text] = []
        for excerpt in excerpts:
            name = f"{excerpt.program}.py"
            if not beside:
                rows.append(Text(name, style="dim"))
            for number, line in enumerate(excerpt.code.splitlines()):
                label = Text.assemble((set_cell_size(name if number == 0 else "", beside), "dim")) if beside else Text("  ")
                indent = len(line) - len(line.lstrip()) + 2
                for row, part in enumerate(self._wrapped(coloured(line), self.width - label.cell_len, indent)):
                    rows.append((label.copy() if row == 0 else Text(" " * label.cell_len)).append_text(part))
        return rows

    def _said(self, telling: Telling) -> list[Text]:
        rows: list[Text] = []
        for line in telling.cast.lines:
            if not line.text.startswith("link "):  # the wires show that
                rows += self.said(line)
        step = telling.run.steps[telling.scene.name]
        if telling.traffic and telling.scene is SCENES[-1]:
            rows += self.table(telling.traffic)
        if step.outcome in ("failed", "not here"):
            rows += self._wrapped(Text(step.detail, style=_OUTCOMES[step.outcome][1]))
        if step.outcome == "ok" and telling.scene.elsewhere:
            rows += self._wrapped(Text(telling.scene.elsewhere, style="dim"), indent=2)
        return rows

    def said(self, line: Line) -> list[Text]:
        """A line of a process, with the time that it took."""
        took = "" if line.ms is None else f"{line.ms:,.1f} ms" if line.ms < 100 else f"{line.ms:,.0f} ms"
        words = Text.assemble(
            (f"{line.who:6}" if line.who else "", "bold"), (in_one_line(line.text), "" if line.who else "yellow")
        )
        if words.cell_len + len(took) + 2 <= self.width:
            return [self._apart(words, Text(took, style="green"))]
        rows = self._wrapped(words, indent=6)
        return rows if not took else [*rows, self._apart(Text(), Text.assemble((took, "green")))]

    def table(self, counts: dict[str, int]) -> list[Text]:
        """Numbers under their names, in one line, or below each other where that is too narrow."""
        cells = [(name, f"{number:,}") for name, number in counts.items()]
        widths = [max(map(len, cell)) for cell in cells]
        if sum(widths) + 2 * len(widths) - 2 > self.width:
            return [Text.assemble((f"{name:13}", "dim"), f"{number:>9}") for name, number in cells]
        heads = "  ".join(name.rjust(width) for (name, _), width in zip(cells, widths, strict=True))
        numbers = "  ".join(number.rjust(width) for (_, number), width in zip(cells, widths, strict=True))
        return [Text(heads, style="dim"), Text(numbers, style="bold")]

    def _marks(self, telling: Telling) -> list[Text]:
        marks = Text()
        for name, step in telling.run.steps.items():
            style = "bold" if step.outcome == "running" else "dim"
            marks.append(" " if marks else "").append(*_OUTCOMES.get(step.outcome, ("·", "dim"))).append(f" {name}", style)
        if marks.cell_len <= self.width:
            return [marks]
        short = Text(" ").join(Text(*_OUTCOMES.get(step.outcome, ("·", "dim"))) for step in telling.run.steps.values())
        return [short.append(f"  {telling.scene.name}", style="bold")]

    # -- letters ---------------------------------------------------------------------------------------------------------

    def _wrapped(self, text: Text, width: int = 0, indent: int = 0) -> list[Text]:
        """A text in as many lines as it needs; further ones begin further in."""
        width = width or self.width
        rows: list[Text] = []
        while text.cell_len > width - (indent if rows else 0):
            room = width - (indent if rows else 0)
            space = text.plain.rfind(" ", 1, room + 1)
            cut = space if space > room // 3 else room
            first, text = text.divide([cut])
            rows.append(first)
            text = text[len(text.plain) - len(text.plain.lstrip()) :]
        rows.append(text)
        return [row if number == 0 else Text(" " * indent).append_text(row) for number, row in enumerate(rows)]

    def _fitting(self, line: Text) -> Text:
        line.truncate(self.width)
        if self.plain:
            line.plain = line.plain.translate(_ASCII)
        return line


def coloured(line: str) -> Text:
    """A line of Python."""
    text = Text(line)
    text.highlight_regex(_KEYWORDS, "magenta")
    text.highlight_regex(r"f?\"[^\"]*\"", "green")
    text.highlight_regex(r"^\s*@[\w.]+", "cyan")
    text.highlight_regex(r"#.*$", "dim")
    return text


def _arrow(arrow: Arrow, share: float, width: int) -> Text:
    """An arrow that has come so far; its label at its beginning."""
    long = round(width * share)
    if long == 0:
        return Text(" " * width)
    label = f" {arrow.label} "
    if cell_len(label) > width - 6:
        label = ""
    if arrow.outward:
        drawn = f"──{label}".ljust(width, "─")[: long - 1] + "▶"
    else:
        drawn = " " * (width - long) + "◀" + f"{label}──".rjust(width, "─")[width - long + 1 :]
    return Text(drawn, style=_COLOURS[arrow.kind])
