"""The tree of a search, and one evaluation, in the terminal."""

from rich.text import Text
from rich.tree import Tree as RichTree

from kerntree.plans.evaluation import CaseTiming, Evaluation, Replay
from kerntree.search.snapshot import NodeView, Snapshot

_STYLES = {"measured": "", "passed": "dim", "failed": "red", "unevaluated": "dim"}


def clean(text: str) -> str:
    """Text safe to show: control characters and direction marks as escapes, lines joined."""
    return "".join(
        c if c.isprintable() and not "\u202a" <= c <= "\u202e" else _escape(c) for c in text
    )


def draw(shown: Snapshot, *, depth: int | None = None, everything: bool = False) -> RichTree:
    """Strategy, speedup, visits and status of each state, under its best parent.

    Failures are folded into a count unless `everything`; the best path is emphasised.
    """
    if shown.root is None:
        return RichTree("nothing was searched yet")
    children: dict[str, list[NodeView]] = {}
    for node in shown.nodes.values():
        if node.best_parent is not None:
            children.setdefault(node.best_parent, []).append(node)
    root = shown.nodes[shown.root]
    drawn = RichTree(_label(root, shown))
    pending = [(root, drawn, 0)]
    while pending:
        node, branch, level = pending.pop()
        below = sorted(children.get(node.identity, []), key=_rank)
        if depth is not None and level >= depth:
            if below:
                branch.add(Text(f"… {len(below)} below", style="dim"))
            continue
        hidden: dict[str, int] = {}
        for child in below:
            folded = child.status == "failed" and child.identity not in children
            if folded and not everything:
                hidden[child.verdict] = hidden.get(child.verdict, 0) + 1
                continue
            pending.append((child, branch.add(_label(child, shown)), level + 1))
        for verdict, count in hidden.items():
            branch.add(Text(f"✗ {count} × {verdict}", style="red"))
    return drawn


def evaluation_lines(evaluation: Evaluation, replay: Replay | None) -> list[str]:
    """One evaluation as text: verdict, reason, evidence and times."""
    known = "  (from the memo)" if evaluation.from_memo else ""
    lines = [f"{evaluation.verdict}{known}"]
    if evaluation.message:
        lines.append(f"{evaluation.stage}: {clean(evaluation.message)}")
    for key, value in evaluation.evidence.items():
        lines.append(f"  {clean(key)}: {clean(str(value))}")
    lines += [f"case {timing.case}: {_timing(timing)}" for timing in evaluation.timings]
    if replay is not None:
        lines += [f"case {t.case}, both as CUDA graphs: {_timing(t)}" for t in replay.timings]
        if replay.message:
            lines.append(f"not timed as a CUDA graph: {clean(replay.message)}")
    return lines


def _timing(timing: CaseTiming) -> str:
    return (
        f"{timing.median_ns / 1e6:.3f} ms, {timing.ratio:.2f} times as fast as "
        f"{timing.baseline} ({timing.ratio_low:.2f} to {timing.ratio_high:.2f})"
    )


def _rank(node: NodeView) -> float:
    return -node.speedup.value if node.speedup else 0.0


def _label(node: NodeView, shown: Snapshot) -> Text:
    on_path = node.identity in shown.best_path
    label = Text(no_wrap=True, overflow="ellipsis")
    label.append(clean(node.step) or "the plain operator", style="bold" if on_path else "")
    if node.speedup is not None:
        s = node.speedup
        label.append(f"  {s.value:.2f}x", style="bold green" if s.value > 1 else "yellow")
        label.append(f" ({s.low:.2f} to {s.high:.2f})", style="dim")
    elif node.status == "failed":
        label.append(f"  {node.verdict}: {clean(node.message)[:60]}", style="red")
    else:
        label.append(f"  {node.status}", style=_STYLES[node.status])
    label.append(f"  [{node.visits} visits", style="dim")
    if node.configs_tried > 1:
        label.append(f", {node.configs_tried} configs", style="dim")
    label.append("]", style="dim")
    if shown.best is not None and node.identity == shown.best.node:
        label.append("  ← best", style="bold green")
    return label


def _escape(c: str) -> str:
    return " " if c in "\n\t" else f"\\u{ord(c):04x}"
