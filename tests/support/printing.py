"""Printing small operators as kernels under a schedule, and holding them against torch."""

import atexit
import importlib.util
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from kerntree.coder.emit import emit_module
from kerntree.coder.groups import root_program
from kerntree.coder.program import PLAIN, Program, Schedule
from kerntree.coder.rewrites import REWRITES
from kerntree.evaluator.export import export_graph, spec_of
from kerntree.plans.problem import Case, InputSpec, OutputSpec, Problem

FAST = Schedule(vectorize=True, parallel=True, tile=True)
TILED = Schedule(tile=True)
SCHEDULES = {
    "cpp": {
        "plain": PLAIN,
        "vector": Schedule(vectorize=True),
        "fast": FAST,
        "one pass": replace(FAST, one_pass=True),
        "kept": replace(FAST, keep_row=True, stream=True, huge_pages=True),
        "columns": replace(FAST, order="reduce_outer"),
        "kept columns": replace(FAST, order="reduce_outer", keep_row=True, one_pass=True),
        "plain columns": Schedule(order="reduce_outer"),
    },
    "triton": {
        "plain": PLAIN,
        "fast": replace(TILED, keep_row=True),
        "one pass": replace(TILED, one_pass=True),
        "kept": replace(TILED, keep_row=True, stream=True, persist=True),
        "columns": replace(TILED, order="reduce_outer", one_pass=True),
        "kept columns": replace(TILED, order="reduce_outer", keep_row=True),
        "pipelined": replace(TILED, pipeline=True, persist=True, stream=True),
        "split": replace(TILED, split=True),
        "kept split": replace(TILED, split=True, keep_row=True, one_pass=True),
    },
}
ALL = [(target, name) for target, named in SCHEDULES.items() for name in named]
SOME = [(t, n) for t, n in ALL if n in ("plain", "fast", "kept", "columns", "one pass")]
FEW = [(t, n) for t, n in ALL if n in ("plain", "fast", "kept")]
DEVICES = {"cpp": "cpu", "triton": "cuda" if torch.cuda.is_available() else "cpu"}
INTERPRETED = DEVICES["triton"] == "cpu"
PLACE = tempfile.mkdtemp()
atexit.register(shutil.rmtree, PLACE, ignore_errors=True)


class Lambda(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def problem_of(module, inputs, *, source=None, mutated=()):
    graph = export_graph(module, tuple(inputs))
    result = module(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
    outputs = list(result) if isinstance(result, tuple) else [result]
    tree = {"tuple": list(range(len(outputs)))} if isinstance(result, tuple) else 0
    case = Case(
        name="given",
        inputs=tuple(
            InputSpec(path=str(k), name=f"x{k}", tensor=spec_of(x))
            if isinstance(x, torch.Tensor)
            else InputSpec(path=str(k), name=f"x{k}", value=x)
            for k, x in enumerate(inputs)
        ),
        outputs=tuple(OutputSpec(path=str(k), tensor=spec_of(o)) for k, o in enumerate(outputs)),
        output_tree=tree,
        mutated_inputs=mutated,
        graph=graph,
    )
    source = source or "import torch\n\nclass Model(torch.nn.Module):\n    pass\n"
    return Problem(name="p", path="p.py", folder="", source=source, cases=(case,))


def fused(problem, schedule, target="cpp"):
    """Everything lowered and fused as far as it goes, under one schedule."""
    graph = problem.cases[0].graph
    program = root_program(graph, target=target)
    for kind in ("lower", "fuse"):
        for strategy in REWRITES[kind].applicable(graph, program):
            if strategy.target == "all":
                program = REWRITES[kind].apply(graph, program, strategy)
                break
        else:
            singles = REWRITES[kind].applicable(graph, program)
            if singles and kind == "lower":
                program = REWRITES[kind].apply(graph, program, singles[0])
    return Program(
        target=target,
        groups=tuple(replace(g, schedule=schedule) if g.lowered else g for g in program.groups),
    )


def load(candidate):
    """The printed module, from a real file as Triton needs it, with many rows a program."""
    folder = Path(tempfile.mkdtemp(prefix="printed-", dir=PLACE))
    path = folder / "printed.py"
    path.write_text(candidate.source)
    spec = importlib.util.spec_from_file_location(f"printed_{folder.name[-8:]}", path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)  # our own text
    for name, values in candidate.tunables.items():
        if name.startswith("ROWS") and INTERPRETED:  # a program takes as long as a tile
            module.CONFIG[name] = max(values)
    return module


def check(module, inputs, printed_as, *, expect_kernel=True, exact=False, scale=1e-5):
    target, name = printed_as
    problem = problem_of(module, inputs)
    program = fused(problem, SCHEDULES[target][name], target)
    inputs = [x.to(DEVICES[target]) if isinstance(x, torch.Tensor) else x for x in inputs]
    if expect_kernel:
        assert any(group.lowered for group in program.groups)
    candidate = emit_module(problem, program)
    printed = load(candidate).ModelNew()
    results = []
    for run in (module, printed):
        result = run(*[x.clone() if isinstance(x, torch.Tensor) else x for x in inputs])
        results.append(result if isinstance(result, tuple) else (result,))
    for expected, got in zip(*results, strict=True):
        assert expected.shape == got.shape and expected.dtype == got.dtype
        if exact or not expected.is_floating_point():
            torch.testing.assert_close(got, expected, rtol=0, atol=0, equal_nan=True)
        else:
            loose = {torch.bfloat16: 2e-2, torch.float16: 2e-3}.get(expected.dtype, scale)
            torch.testing.assert_close(got, expected, rtol=loose, atol=loose, equal_nan=True)
    return candidate
