"""The demo on a screen: two live panels and tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from rich.columns import Columns
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

#: seconds between two pictures
REFRESH = 0.1


class LaneLike(Protocol):
    """What is shown of an engine's run."""

    name: str
    token_ids: list[int]
    pieces: list[tuple[str, bool]]

    @property
    def tokens_per_s(self) -> float: ...


class View:
    """Lines of text, which is all a pipe or a file can show."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def prompt(self, title: str, *lanes: LaneLike) -> Iterator[None]:
        """Around the decoding of one prompt."""
        self.say(f"\n[{title}]")
        yield
        self.say("".join(text for text, _ in lanes[-1].pieces).strip())
        self.say(", ".join(f"{lane.name}: {lane.tokens_per_s:.1f} tokens/s" for lane in lanes))

    def update(self) -> None:
        """A step was made."""

    def table(self, kinds: dict[str, dict[str, Any]]) -> None:
        """The figures of ``race.summarize``, a row a kind."""
        table = Table(
            title="tokens/s of whole requests, prompt included; same: the two texts are identical",
            title_justify="left",
        )
        table.add_column("prompts")
        for column in ("plain", "spec.", "speed-up", "accepted length"):
            table.add_column(column, justify="right")
        table.add_column("% accepted by position", min_width=14)
        table.add_column("same")
        for kind, row in kinds.items():
            table.add_row(
                kind,
                f"{row['plain_tokens_per_s']:.1f}",
                f"{row['spec_tokens_per_s']:.1f}",
                f"{row['speedup']:.2f}x",
                f"{row['mean_accepted_length']:.2f}",
                " ".join(f"{rate:.0%}"[:-1] for rate in row["acceptance_per_position"]),
                "yes" if row["identical"] else "NO",
            )
        self.console.print(table)


class LiveView(View):
    """Two panels side by side; text from accepted drafts is green."""

    @contextmanager
    def prompt(self, title: str, *lanes: LaneLike) -> Iterator[None]:
        self._title, self._lanes, self._drawn = title, lanes, 0.0
        # no thread that draws: it would take time from the steps that are measured
        with Live(console=self.console, auto_refresh=False) as self._live:
            yield
            self._draw()

    def update(self) -> None:
        if time.perf_counter() - self._drawn >= REFRESH:
            self._draw()

    def _draw(self) -> None:
        width = self.console.width // 2 - 1
        height = max(6, min(18, self.console.height - 3))
        panels = [self._panel(lane, width, height) for lane in self._lanes]
        self._live.update(Group(Text(self._title, style="bold"), Columns(panels)), refresh=True)
        self._drawn = time.perf_counter()

    def _panel(self, lane: LaneLike, width: int, height: int) -> Panel:
        text = Text.assemble(*((piece, "green" if accepted else "") for piece, accepted in lane.pieces))
        lines = text.wrap(self.console, width - 4)
        return Panel(
            Text("\n").join(lines[-(height - 2) :]),
            title=f"{lane.name}: {lane.tokens_per_s:.1f} tokens/s",
            subtitle=f"{len(lane.token_ids)} tokens",
            width=width,
            height=height,
        )
