"""The loops around a row program, over the kept dimensions, and how threads share them."""

from collections.abc import Callable
from contextlib import ExitStack

from kerntree.coder.emit.lines import Lines
from kerntree.coder.emit.nest import Nest


def write_kept_loops(nest: Nest, lines: Lines, *, write_rows: Callable[[], None]) -> None:
    """The loops around what `write_rows` writes."""
    outer = [nest.loop(d) for d in nest.outer]
    if nest.split:  # threads share the passes inside
        with lines.inside(*outer):
            write_rows()
        return
    fenced = nest.schedule.stream and nest.wide
    with ExitStack() as threads:
        if nest.schedule.parallel:
            _share(nest, lines, threads, fenced=fenced)
        with lines.inside(*outer):
            if nest.rows:
                write_rows()
            else:
                _columns(nest, lines, write_rows)
        if fenced and "stream" in lines.helpers:
            lines.put("end_stream();")


def _share(nest: Nest, lines: Lines, threads: ExitStack, *, fenced: bool) -> None:
    """Shares the loops that follow; each thread of a fenced one ends its own streams."""
    loops = len(nest.outer) + (0 if nest.rows else 1)
    collapse = f" collapse({loops})" if loops > 1 else ""
    if fenced:
        lines.put("#pragma omp parallel num_threads(threads)")
        threads.enter_context(lines.inside("{"))
        lines.put(f"#pragma omp for{collapse} schedule(static) nowait")
    else:
        lines.put(f"#pragma omp parallel for{collapse} num_threads(threads) schedule(static)")


def _columns(nest: Nest, lines: Lines, write_rows: Callable[[], None]) -> None:
    """Blocks along the last kept dimension; the whole row program runs in each."""
    d, extent = nest.lane, nest.extent_text(nest.lane)
    if not nest.wide:
        with lines.inside(nest.loop(d)):
            write_rows()
        return
    with lines.inside(f"for (int64_t i{d} = 0; i{d} < {extent}; i{d} += LANES) {{"):
        head = "auto block = [&](const int lanes) __attribute__((always_inline)) {"
        with lines.inside(head, end="};"):
            write_rows()
        lines.put(f"if (i{d} + LANES <= {extent}) block(LANES);")
        lines.put(f"else block((int)({extent} - i{d}));")
