"""The sketch coder as the search sees it."""

import pytest
import torch
from torch import nn

from kerntree.cache.digest import digest
from kerntree.coder.program import Program, to_json
from kerntree.coder.sketch import SketchCoder
from kerntree.evaluator.export import export_graph
from kerntree.plans.candidate import Candidate
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.graph import OperatorGraph
from kerntree.plans.problem import Case, Problem
from kerntree.plans.protocols import Coder
from kerntree.plans.strategy import Strategy


def printed(problem: Problem, program: Program | None) -> Candidate:
    """Stands in for the printer: the program is what these tests look at."""
    if program is None:
        return Candidate(source=problem.source, language="torch")
    return Candidate(source="", language="cpp", program=to_json(program))


class Norm(nn.Module):
    def forward(self, x, y):
        return torch.softmax(torch.exp(x) * 2 + y, dim=-1)


class Other(nn.Module):
    def forward(self, x, y):
        return x + y


def graph_of(module: nn.Module, rows: int, columns: int) -> OperatorGraph:
    x = torch.empty(rows, columns, device="meta")
    return export_graph(module, (x, x.clone()))


def problem_of(*graphs: OperatorGraph | None) -> Problem:
    cases = tuple(
        Case(
            name=f"case{index}",
            inputs=(),
            outputs=(),
            output_tree=0,
            graph=graph,
            graph_error="" if graph else "control flow on data",
        )
        for index, graph in enumerate(graphs)
    )
    return Problem(name="p", path="p.py", folder=".", source="class Model: ...", cases=cases)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problem_of(graph_of(Norm(), 4096, 4096))


@pytest.fixture
def coder() -> Coder:
    return SketchCoder(emit=printed)


def listed(coder: Coder, problem: Problem, candidate: Candidate) -> dict[tuple[str, str], Strategy]:
    return {(s.kind, s.target): s for s in coder.strategies(problem, candidate)}


def test_a_preview_is_the_identity_that_realizing_gives(coder, problem):
    candidate = coder.root(problem)
    for _ in range(6):
        strategies = coder.strategies(problem, candidate)
        if not strategies:
            break
        for strategy in strategies:
            child = coder.realize(problem, candidate, strategy)
            assert coder.preview(problem, candidate, strategy) == child.identity
            assert child.identity != candidate.identity
        candidate = coder.realize(problem, candidate, strategies[0])


def test_what_the_planner_and_analyst_add_to_a_strategy_does_not_change_the_node(coder, problem):
    root = coder.root(problem)
    strategy = coder.strategies(problem, root)[0]
    bare = Strategy(kind=strategy.kind, target=strategy.target, instruction="")
    assert coder.preview(problem, root, bare) == coder.preview(problem, root, strategy)


def test_lowering_enables_and_vectorizing_gains(coder, problem):
    root = coder.root(problem)
    lower = listed(coder, problem, root)["lower", "all"]
    assert lower.enabling
    assert lower.expected_gain < 0  # a plain scalar kernel is slower than torch
    assert lower.parameters["unlocks"] > 0
    lowered = coder.realize(problem, root, lower)
    steps = listed(coder, problem, lowered)
    assert steps["vectorize", "all"].expected_gain > 0
    assert not steps["vectorize", "all"].enabling
    assert steps["fuse", "all"].expected_gain > 0


def test_lowering_everything_unlocks_more_than_lowering_a_part(coder, problem):
    strategies = listed(coder, problem, coder.root(problem))
    most = strategies.pop(("lower", "all")).parameters["unlocks"]
    parts = [s.parameters["unlocks"] for s in strategies.values() if s.kind == "lower"]
    assert parts
    assert max(parts) < most


def test_without_a_graph_the_root_is_plain_and_nothing_applies():
    coder = SketchCoder(emit=printed)
    problem = problem_of(None)
    root = coder.root(problem)
    assert root.language == "torch"
    assert coder.strategies(problem, root) == []
    assert "control flow on data" in coder.obstacle(problem)


def test_cases_that_run_different_operators_are_not_rewritten():
    coder = SketchCoder(emit=printed)
    problem = problem_of(graph_of(Norm(), 64, 64), graph_of(Other(), 64, 64))
    assert "case1" in coder.obstacle(problem)
    assert coder.strategies(problem, coder.root(problem)) == []


def test_a_strategy_must_suit_every_case():
    coder = SketchCoder(emit=printed)
    long, short = graph_of(Norm(), 16, 4096), graph_of(Norm(), 16, 32)
    lower = Strategy(kind="lower", target="all", instruction="")

    def steps(problem: Problem) -> set[tuple[str, str]]:
        return set(listed(coder, problem, coder.realize(problem, coder.root(problem), lower)))

    assert {("tile", "_softmax"), ("tile", "all")} <= steps(problem_of(long, long))
    mixed = steps(problem_of(long, short))
    assert not {("tile", "_softmax"), ("tile", "all")} & mixed  # 32 columns are too few
    assert ("vectorize", "all") in mixed


@pytest.mark.parametrize(
    ("kind", "target", "reason"),
    [
        ("quantize", "all", "no rewrite of kind quantize"),
        ("vectorize", "exp", "changes nothing"),
        ("fuse", "exp", "a\\+b"),
        ("lower", "nothing", "no operator nothing"),
    ],
)
def test_what_cannot_be_realized_is_said(coder, problem, kind, target, reason):
    strategy = Strategy(kind=kind, target=target, instruction="")
    root = coder.root(problem)
    assert coder.preview(problem, root, strategy) is None
    with pytest.raises(CannotRealizeError, match=reason):
        coder.realize(problem, root, strategy)


def test_text_that_is_no_program_is_not_rewritten(coder, problem):
    text = Candidate(source="class ModelNew: ...", language="python")
    assert coder.strategies(problem, text) == []
    with pytest.raises(CannotRealizeError, match="text"):
        coder.realize(problem, text, Strategy(kind="lower", target="all", instruction=""))


def test_the_identity_is_the_digest_of_the_program(coder, problem):
    root = coder.root(problem)
    assert root.identity == digest(root.program)
