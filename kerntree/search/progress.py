"""What a search shows while it runs, and the table at its end."""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kerntree.cache.journal import Event
from kerntree.search.budget import Budget, forecast, spent
from kerntree.search.snapshot import Snapshot
from kerntree.search.tree import Tree, evaluation_of
from kerntree.search.views.terminal import clean


class Progress:
    """A live line in a terminal; elsewhere a line when something notable happens."""

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self._live: Live | None = None
        self._budget = Budget()
        self._hits = 0
        self._verdicts: Counter[str] = Counter()

    def say(self, message: str) -> None:
        """A line of its own."""
        if not self.quiet:
            self.console.print(Text(clean(message)))

    def begin(self, budget: Budget) -> None:
        """The search starts."""
        self._budget = budget
        if self.console.is_terminal and not self.quiet:
            self._live = Live(console=self.console, refresh_per_second=4, transient=True)
            self._live.start()

    def event(self, event: Any, tree: Tree, events: Sequence[Event]) -> None:
        """Something happened that is already in the journal."""
        if event.kind == "evaluated":
            self._hits += event.evaluation.from_memo
            self._verdicts[str(event.evaluation.verdict)] += 1
        line = self._line(tree, events)
        if self._live is not None:
            self._live.update(Text(line))
        if event.kind == "baselines":
            for baseline in event.baselines:
                times = ", ".join(f"{ns / 1e6:.3f} ms" for ns in baseline.median_ns.values())
                self.say(f"{baseline.name}: {times if baseline.available else baseline.message}")
        elif event.kind == "duel" and event.accepted:
            reward = event.duel.challenger.reward or 0.0
            self.say(f"record: {2**reward:.2f} times the baseline   ({line})")
        elif event.kind == "evaluated" and self._live is None:
            shown = event.evaluation
            speed = "" if shown.reward is None else f", {2**shown.reward:.2f} times the baseline"
            memo = ", from the memo" if shown.from_memo else ""
            self.say(f"{event.node[:8]} {event.config or ''}: {shown.verdict}{speed}{memo}")

    def end(self) -> None:
        """The search is over; the live line goes."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _line(self, tree: Tree, events: Sequence[Event]) -> str:
        best = evaluation_of(tree, tree.incumbent)
        speed = "no record yet"
        if best is not None and best.reward is not None:
            speed = f"best {2**best.reward:.2f} times the baseline"
        failures = sum(n for verdict, n in self._verdicts.items() if verdict != "correct")
        left = forecast(self._budget, spent(events, now=time.time()))
        return (
            f"{speed} | {sum(self._verdicts.values())} evaluations, {failures} failed, "
            f"{self._hits} from the memo | {left}"
        )


def closing_table(shown: Snapshot) -> Table:
    """Eager, compiled and best, case by case: time with interval, ratios, error."""
    table = Table(title="median time per call", title_justify="left")
    for heading in ("case", "what", "ms", "95 % interval", "against the fastest baseline", "error"):
        table.add_column(heading, justify="left" if heading in ("case", "what") else "right")
    best, name = shown.best_evaluation, "best"
    if best is None and shown.leader != shown.root:
        best, name = shown.leader_evaluation, "leader, no record"
    usable = [b for b in shown.baselines if b.available]
    cases = list(usable[0].median_ns) if usable else []
    for case in cases:
        fastest = min(b.median_ns[case] for b in usable)
        for baseline in shown.baselines:
            if not baseline.available:
                table.add_row(case, baseline.name, "-", "", clean(baseline.message)[:40], "")
                continue
            ns = baseline.median_ns[case]
            table.add_row(case, baseline.name, f"{ns / 1e6:.3f}", "", f"{fastest / ns:.2f}x", "")
        for timing in best.timings if best else ():
            if timing.case != case:
                continue
            errors = [e for e in best.errors if e.case == case] if best else []
            error = max(errors, key=lambda e: e.relative_rms) if errors else None
            table.add_row(
                case,
                name,
                f"{timing.median_ns / 1e6:.3f}",
                f"{timing.median_low_ns / 1e6:.3f} to {timing.median_high_ns / 1e6:.3f}",
                f"{timing.ratio:.2f}x ({timing.ratio_low:.2f} to {timing.ratio_high:.2f})",
                ""
                if error is None
                else f"{error.relative_rms:.1e} (torch {error.relative_rms_torch:.1e})",
                style="bold",
            )
        for timing in shown.replay.timings if shown.replay else ():
            if timing.case == case:
                table.add_row(
                    case,
                    "both as CUDA graphs",
                    f"{timing.median_ns / 1e6:.3f}",
                    f"{timing.median_low_ns / 1e6:.3f} to {timing.median_high_ns / 1e6:.3f}",
                    f"{timing.ratio:.2f}x ({timing.ratio_low:.2f} to {timing.ratio_high:.2f})",
                    "",
                )
    return table


def closing_lines(shown: Snapshot, run: str) -> list[str]:
    """The plan that won, where evaluations came from, and what to do next."""
    lines = []
    if shown.best is not None:
        plan = shown.nodes[shown.best.node].plan
        lines.append("plan: " + (" > ".join(plan) or "the plain operator"))
        lines.append(f"config: {dict(shown.best.config)}")
        if shown.replay is not None and shown.replay.message:
            lines.append(f"not timed as a CUDA graph: {clean(shown.replay.message)}")
    else:
        lines.append("nothing measured beats the fastest baseline for certain")
        if shown.leader is not None and shown.leader != shown.root:
            plan = shown.nodes[shown.leader].plan
            lines.append("the leader's plan: " + " > ".join(plan))
            lines.append(f"the leader's kernel: kerntree export {run} --leader")
    failed = {v: n for v, n in shown.verdicts.items() if v != "correct"}
    lines.append(
        f"{shown.evaluations} evaluations, {shown.memo_hits} of them from the memo"
        + (f"; failed: {failed}" if failed else "")
    )
    lines.append(f"the run lies in {run}")
    if not shown.finished:
        lines.append(f"go on with: kerntree resume {run}")
    lines.append(f"look at it:  kerntree show {run}")
    if shown.best is not None:
        lines.append(f"the kernel:  {run}/best.py   (python {run}/best.py checks itself)")
    return lines
