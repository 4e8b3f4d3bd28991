"""What every rewrite promises, and what each of them is for."""

import importlib.util
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from torch import nn

from kerntree.cache.digest import digest
from kerntree.coder.cost import CpuMachine, program_seconds
from kerntree.coder.groups import in_running_order, live_nodes, root_program
from kerntree.coder.program import Program, from_json, to_json
from kerntree.coder.rewrites import REWRITES
from kerntree.evaluator.export import export_graph
from kerntree.plans.errors import CannotRealizeError
from kerntree.plans.graph import OperatorGraph, operands
from kerntree.plans.strategy import Strategy

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


def step(kind: str, target: str) -> Strategy:
    return Strategy(kind=kind, target=target, instruction="")


def apply(graph: OperatorGraph, program: Program, strategy: Strategy) -> Program:
    return REWRITES[strategy.kind].apply(graph, program, strategy)


def applicable(graph: OperatorGraph, program: Program) -> list[Strategy]:
    return [s for rewrite in REWRITES.values() for s in rewrite.applicable(graph, program)]


def steps(graph: OperatorGraph, program: Program, *plan: tuple[str, str]) -> Program:
    for kind, target in plan:
        program = apply(graph, program, step(kind, target))
    return program


class ColumnSoftmax(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=0)


class Branches(nn.Module):
    """A value read twice, a matrix product between, a transposed view, and two results."""

    def forward(self, x, w):
        a = torch.exp(x)
        b = torch.relu(a @ w)
        return a * b + x.transpose(0, 1).reshape(x.shape), a.sum(dim=-1)


class Split(nn.Module):
    def forward(self, x):
        values, positions = x.max(dim=-1)
        return values * 2, positions


class Expensive(nn.Module):
    """A small costly value, broadcast: computing it for each element would be a loss."""

    def forward(self, x, b):
        return x + torch.tanh(torch.exp(b))


def _export(module: nn.Module, *inputs: torch.Tensor) -> OperatorGraph:
    return export_graph(module, inputs)


def _example(path: Path) -> OperatorGraph:
    spec = importlib.util.spec_from_file_location(f"example_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    with torch.device("meta"):
        return export_graph(module.Model(*module.get_init_inputs()), tuple(module.get_inputs()))


@pytest.fixture(scope="session")
def graphs() -> dict[str, OperatorGraph]:
    def meta(*shape: int) -> torch.Tensor:
        return torch.empty(*shape, device="meta")

    return {
        **{path.stem: _example(path) for path in EXAMPLES},
        "column_softmax": _export(ColumnSoftmax(), meta(2048, 4096)),
        "branches": _export(Branches(), meta(256, 256), meta(256, 256)),
        "split": _export(Split(), meta(64, 1000)),
        "expensive": _export(Expensive(), meta(2048, 2048), meta(2048)),
    }


NAMES = [*(path.stem for path in EXAMPLES), "column_softmax", "branches", "split", "expensive"]
name_of_graph = pytest.mark.parametrize("name", NAMES)


def check_program(graph: OperatorGraph, program: Program) -> None:
    """Covers the live nodes once, in an order that runs, closed over results of several."""
    nodes = [name for group in program.groups for name in group.nodes]
    assert sorted(nodes) == sorted(live_nodes(graph))
    assert in_running_order(graph, program.groups) == program.groups
    place = [node.name for node in graph.nodes]
    ready = {entry.name for entry in graph.inputs}
    for group in program.groups:
        assert list(group.nodes) == sorted(group.nodes, key=place.index)
        for name in group.nodes:
            assert set(operands(graph.node(name))) <= ready | set(group.nodes)
            if graph.node(name).target == "getitem":
                assert operands(graph.node(name))[0] in group.nodes
        ready.update(group.nodes)
    assert from_json(to_json(program)) == program


@name_of_graph
def test_every_strategy_listed_changes_a_sound_program_and_is_not_listed_again(graphs, name):
    graph = graphs[name]
    waiting, seen = [root_program(graph)], set()
    while waiting and len(seen) < 40:
        program = waiting.pop()
        if digest(to_json(program)) in seen:
            continue
        seen.add(digest(to_json(program)))
        for strategy in applicable(graph, program):
            child = apply(graph, program, strategy)
            assert child != program
            check_program(graph, child)
            again = {(s.kind, s.target) for s in applicable(graph, child)}
            assert (strategy.kind, strategy.target) not in again
            waiting.append(child)


@name_of_graph
def test_what_is_not_listed_is_refused_with_a_reason(graphs, name):
    graph = graphs[name]
    program = root_program(graph)
    listed = {(s.kind, s.target) for s in applicable(graph, program)}
    targets = ["all", "nothing_of_the_kind", *(group.name for group in program.groups)]
    for kind in REWRITES:
        for target in targets:
            if (kind, target) not in listed:
                with pytest.raises(CannotRealizeError, match=r"\w"):
                    apply(graph, program, step(kind, target))


@name_of_graph
def test_instructions_are_sentences_that_name_their_target(graphs, name):
    graph = graphs[name]
    for strategy in applicable(graph, root_program(graph)):
        assert strategy.instruction.endswith(".")
        for part in strategy.target.split("+"):
            assert part == "all" or part in strategy.instruction


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_eight_steps_reach_a_finished_program(graphs, path):
    graph = graphs[path.stem]
    program, plan = root_program(graph), []
    for kind in ("lower", "fuse", "vectorize", "parallelize", "tile"):
        listed = REWRITES[kind].applicable(graph, program)
        if listed:
            plan.append(listed[0])
            program = apply(graph, program, listed[0])
            assert len(plan) <= 8
        assert not REWRITES[kind].applicable(graph, program)
    largest = max(
        (group for group in program.groups if group.lowered), key=lambda group: len(group.nodes)
    )
    assert largest.schedule.vectorize
    assert largest.schedule.parallel
    assert largest.schedule.tile


SCHEDULES = (
    "vectorize",
    "parallelize",
    "one_pass",
    "keep_row",
    "tile",
    "stream",
    "reorder",
    "huge_pages",
)


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_orders_of_commuting_rewrites_give_one_digest(graphs, data):
    graph = graphs[data.draw(st.sampled_from(NAMES))]
    program = root_program(graph)
    lowered = REWRITES["lower"].applicable(graph, program)
    program = apply(graph, program, lowered[0])
    chosen: list[Strategy] = []
    for _ in range(data.draw(st.integers(2, 6))):
        here = [
            s
            for s in applicable(graph, program)
            if s.target != "all" and s.kind in (*SCHEDULES, "fuse")
        ]
        fresh = [s for s in here if (s.kind, s.target) not in {(c.kind, c.target) for c in chosen}]
        if fresh:
            chosen.append(data.draw(st.sampled_from(fresh)))
    results = set()
    for order in (chosen, data.draw(st.permutations(chosen))):
        state = program
        for strategy in order:
            try:
                state = apply(graph, state, strategy)
            except CannotRealizeError:
                reject()  # one step needs another before it, or makes it needless
        results.add(digest(to_json(state)))
    assert len(results) == 1


@pytest.mark.parametrize("name", ["bias_gelu_scale", "layernorm_residual", "branches"])
@pytest.mark.parametrize("kind", ["vectorize"])
def test_fusing_everything_commutes_with_a_schedule_for_everything(graphs, name, kind):
    graph = graphs[name]
    program = steps(graph, root_program(graph), ("lower", "all"))
    scheduled = apply(graph, program, REWRITES[kind].applicable(graph, program)[0])
    fuse = REWRITES["fuse"].applicable(graph, program)[0]
    fused = apply(graph, program, fuse)
    after = apply(graph, fused, REWRITES[kind].applicable(graph, fused)[0])
    assert apply(graph, scheduled, fuse) == after


def test_the_root_leaves_out_what_nobody_reads(graphs):
    graph = graphs["softmax_rows"]
    unread = graph.nodes[0].replaced(name="unread")
    longer = graph.replaced(nodes=(unread, *graph.nodes))
    assert root_program(longer) == root_program(graph)


def test_fusing_never_makes_a_circle(graphs):
    graph = graphs["branches"]
    program = steps(graph, root_program(graph), ("lower", "all"), ("fuse", "all"))
    check_program(graph, program)
    home = {name: group.name for group in program.groups for name in group.nodes}
    assert home["exp"] != home["mul"]  # the matrix product stands between them
    with pytest.raises(CannotRealizeError, match="between"):
        apply(graph, program, step("fuse", "exp+mul"))


def test_views_join_the_kernel_that_reads_them(graphs):
    graph = graphs["branches"]
    views = [n.name for n in graph.nodes if n.target == "aten.permute.default"]
    lowered = steps(graph, root_program(graph), ("lower", "all"))
    assert not any(group.lowered for group in lowered.groups if group.name in views)
    fused = steps(graph, lowered, ("fuse", "all"))
    assert all(group.lowered for group in fused.groups if set(views) & set(group.nodes))


def test_fusing_everything_does_not_compute_a_costly_value_for_every_element(graphs):
    graph = graphs["expensive"]
    lowered = steps(graph, root_program(graph), ("lower", "all"))
    fused = REWRITES["fuse"].applicable(graph, lowered)
    assert {s.target for s in fused} >= {"exp+tanh", "tanh+add"}
    assert len(apply(graph, lowered, fused[0]).groups) == 2


def test_columns_are_walked_across(graphs):
    graph = graphs["column_softmax"]
    program = steps(graph, root_program(graph), ("lower", "_softmax"))
    assert [s.target for s in REWRITES["reorder"].applicable(graph, program)] == ["_softmax"]
    across = steps(graph, program, ("reorder", "_softmax"))
    assert across.groups[0].schedule.order == "reduce_outer"
    machine = CpuMachine()
    assert program_seconds(graph, across, machine) < program_seconds(graph, program, machine)
    rows = graphs["softmax_rows"]
    by_rows = steps(rows, root_program(rows), ("lower", "_softmax"))
    assert not REWRITES["reorder"].applicable(rows, by_rows)


def test_one_pass_is_listed_where_two_reductions_follow_each_other(graphs):
    softmax, gelu = graphs["softmax_rows"], graphs["bias_gelu_scale"]
    assert REWRITES["one_pass"].applicable(
        softmax, steps(softmax, root_program(softmax), ("lower", "_softmax"))
    )
    assert not REWRITES["one_pass"].applicable(
        gelu, steps(gelu, root_program(gelu), ("lower", "all"), ("fuse", "all"))
    )


def test_a_row_is_kept_only_where_it_fits_and_is_needed_again():
    def kept(columns: int, dim: int) -> list[Strategy]:
        class Softmax(nn.Module):
            def forward(self, x):
                return torch.softmax(x, dim=dim)

        graph = _export(Softmax(), torch.empty(16, columns, device="meta"))
        program = steps(graph, root_program(graph), ("lower", "_softmax"))
        return REWRITES["keep_row"].applicable(graph, program)

    assert kept(1024, -1)
    assert not kept(1 << 20, -1)


def test_only_large_results_that_stay_unread_are_streamed(graphs):
    graph = graphs["bias_gelu_scale"]
    program = steps(graph, root_program(graph), ("lower", "all"))
    assert [s.target for s in REWRITES["stream"].applicable(graph, program)] == ["mul"]
    small = graphs["split"]
    lowered = apply(
        small, root_program(small), REWRITES["lower"].applicable(small, root_program(small))[0]
    )
    assert not REWRITES["stream"].applicable(small, lowered)


def test_huge_pages_are_asked_for_under_large_results_only(graphs):
    large, small = graphs["softmax_rows"], graphs["split"]
    for graph, expected in ((large, 1), (small, 0)):
        program = root_program(graph)
        lowered = apply(graph, program, REWRITES["lower"].applicable(graph, program)[0])
        assert len(REWRITES["huge_pages"].applicable(graph, lowered)) == expected


def test_little_work_is_not_shared_among_threads(graphs):
    graph = graphs["cross_entropy"]
    program = steps(graph, root_program(graph), ("lower", "all"), ("fuse", "all"))
    assert [s.target for s in REWRITES["parallelize"].applicable(graph, program)] == ["where_1"]
