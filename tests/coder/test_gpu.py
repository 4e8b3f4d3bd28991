"""Steps that mean something on a GPU, and what the cost model expects of them."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from kerntree.coder.emit import emit_module
from kerntree.coder.emit.triton_tiles import power_of_two, powers, tiles_of
from kerntree.coder.gpu import GpuMachine
from kerntree.coder.groups import kernel_of, root_program
from kerntree.coder.program import Schedule
from kerntree.coder.rewrites import REWRITES, kinds_for
from kerntree.coder.sketch import SketchCoder
from kerntree.evaluator.export import export_graph
from kerntree.plans.problem import Case, InputSpec, Problem

MACHINE = GpuMachine()


class Lambda(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def lowered(function, *shapes, dtypes=()):
    inputs = [torch.empty(shape, device="meta") for shape in shapes]
    inputs += [torch.empty(s, dtype=d, device="meta") for s, d in dtypes]
    graph = export_graph(Lambda(function), tuple(inputs))
    program = root_program(graph, target="triton")
    for kind in ("lower", "fuse"):
        listed = REWRITES[kind].applicable(graph, program)
        if listed:
            program = REWRITES[kind].apply(graph, program, listed[0])
    return graph, program


def softmax(x):
    return torch.softmax(x, -1)


def kinds(graph, program):
    return {kind for kind in kinds_for("triton") if REWRITES[kind].applicable(graph, program)} - {
        "lower",
        "fuse",
    }


def seconds(graph, program, **schedule):
    (group,) = program.groups
    kernel = kernel_of(graph, group)
    return MACHINE.kernel_seconds(kernel, replace(Schedule(tile=True), **schedule))


def test_each_target_has_kinds_of_its_own():
    assert {"vectorize", "parallelize", "huge_pages"} <= set(kinds_for("cpp"))
    assert {"split", "persist", "pipeline"} <= set(kinds_for("triton"))
    assert not {"split", "persist", "pipeline"} & set(kinds_for("cpp"))
    assert not {"vectorize", "parallelize", "huge_pages"} & set(kinds_for("triton"))


def test_long_rows_are_split_and_short_ones_kept():
    assert "split" in kinds(*lowered(softmax, (64, 1 << 20)))
    assert "keep_row" not in kinds(*lowered(softmax, (64, 1 << 20)))
    short = kinds(*lowered(softmax, (4096, 1024)))
    assert "keep_row" in short and "split" not in short


def test_a_split_row_may_be_kept_in_parts():
    graph, program = lowered(softmax, (64, 1 << 20))
    (step,) = REWRITES["split"].applicable(graph, program)
    after = REWRITES["split"].apply(graph, program, step)
    assert "keep_row" in kinds(graph, after)
    assert not {"split", "reorder", "persist"} & kinds(graph, after)


def test_what_gathers_from_its_row_is_not_split():
    long = 1 << 16
    graph, program = lowered(
        functional.cross_entropy, (8, long), dtypes=[((8,), torch.int64)]
    )  # fmt: skip
    targets = {s.target for s in REWRITES["split"].applicable(graph, program)}
    gathering = next(g for g in program.groups if len(g.nodes) > 1)
    assert gathering.name not in targets


@pytest.mark.parametrize("order", [("split", "keep_row"), ("tile", "split", "one_pass")])
def test_steps_commute(order):
    graph, program = lowered(softmax, (64, 1 << 20))

    def after(kinds):
        current = program
        for kind in kinds:
            step = REWRITES[kind].applicable(graph, current)[0]
            current = REWRITES[kind].apply(graph, current, step)
        return current

    once = after(order)
    other = after((order[0], *reversed(order[1:])))
    assert once == other


def test_few_long_rows_want_several_programs_and_many_do_not():
    few = lowered(softmax, (16, 1 << 20))
    assert seconds(*few, split=True) < 0.2 * seconds(*few)
    many = lowered(softmax, (1 << 15, 1 << 12))
    assert seconds(*many, keep_row=True) < seconds(*many)
    assert seconds(*many, keep_row=True) < seconds(*many, split=True, keep_row=True)


def test_a_row_that_takes_all_programs_leaves_memory_idle_while_they_wait():
    whole = lowered(softmax, (16, 1 << 22))
    assert seconds(*whole, split=True, one_pass=True) < seconds(
        *whole, split=True, one_pass=True, keep_row=True
    )


def test_sizes_are_powers_of_two_and_the_first_is_among_them():
    for shape in ((3, 5), (4096, 393216), (1, 1 << 22), (1 << 20, 3)):
        graph, program = lowered(softmax, shape)
        kernel = kernel_of(graph, program.groups[0])
        for schedule in (
            Schedule(tile=True),
            Schedule(tile=True, keep_row=True),
            Schedule(tile=True, split=True),
            Schedule(tile=True, split=True, keep_row=True, persist=True, pipeline=True),
            Schedule(tile=True, order="reduce_outer", pipeline=True),
        ):
            tiles = tiles_of(kernel, schedule)
            for name, values in tiles.choices.items():
                assert list(values) == sorted(set(values))
                assert name == "STAGES" or all(v == power_of_two(v) for v in values)
                assert tiles.first[name] in values
            fixed = tiles_of(kernel, replace(schedule, tile=False))
            assert all(len(values) == 1 for values in fixed.choices.values())


def test_powers_hold_both_ends():
    assert powers(4, 32) == (4, 8, 16, 32)
    assert powers(8, 2) == (8,)
    assert [power_of_two(n) for n in (0, 1, 2, 3, 64, 65)] == [1, 1, 2, 4, 64, 128]


def test_a_step_that_is_expected_to_lose_is_not_taken_for_one_that_enables():
    graph, program = lowered(softmax, (16, 1 << 22))
    for kind in ("split", "one_pass"):
        program = REWRITES[kind].apply(graph, program, REWRITES[kind].applicable(graph, program)[0])
    given = InputSpec(path="0", name="x", tensor=graph.inputs[0].spec)
    case = Case(name="default", inputs=(given,), outputs=(), output_tree=0, graph=graph)
    source = "import torch\n\nclass Model(torch.nn.Module):\n    pass\n"
    problem = Problem(name="p", path="p.py", folder="", source=source, cases=(case,))
    candidate = emit_module(problem, program)
    listed = {s.kind: s for s in SketchCoder("triton").strategies(problem, candidate)}
    assert listed["keep_row"].expected_gain < -0.1
    assert not any(strategy.enabling for strategy in listed.values())
