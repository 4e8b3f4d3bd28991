"""The problem file's text as the candidate embeds it: for construction only."""

import ast


def embedded_reference(source: str) -> tuple[str, str]:
    """(`from __future__` lines, the rest without module docstring and `__main__` block).

    The text is kept as it stands; raises `SyntaxError` if it is not Python.
    """
    tree = ast.parse(source)
    lines = source.splitlines()
    dropped: set[int] = set()
    future: list[str] = []
    for position, statement in enumerate(tree.body):
        span = range(statement.lineno - 1, statement.end_lineno or statement.lineno)
        is_docstring = (
            position == 0
            and isinstance(statement, ast.Expr)
            and isinstance(statement.value, ast.Constant)
            and isinstance(statement.value.value, str)
        )
        if isinstance(statement, ast.ImportFrom) and statement.module == "__future__":
            future += [lines[n] for n in span]
            dropped.update(span)
        elif is_docstring or _is_main_guard(statement):
            dropped.update(span)
    kept = [line for n, line in enumerate(lines) if n not in dropped]
    return "\n".join(future), "\n".join(kept).strip("\n")


def _is_main_guard(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.If)
        and isinstance(statement.test, ast.Compare)
        and isinstance(statement.test.left, ast.Name)
        and statement.test.left.id == "__name__"
    )
