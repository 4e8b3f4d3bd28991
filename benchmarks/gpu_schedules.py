"""What each schedule of a Triton kernel reaches on a GPU, beside eager and torch.compile.

    python benchmarks/gpu_schedules.py --seconds 300

Five memory-bound operators at sizes that fill a large GPU. Every schedule is printed under its
first config and under neighbours of it, one size changed at a time. Times are medians by CUDA
events, the L2 cache flushed before each call; `share` is the time that the fewest bytes take at
the speed of a device-to-device copy, over the time measured. Writes a JSON file.
"""

import argparse
import functools
import importlib.util
import json
import math
import operator
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import torch
import triton

from kerntree.coder.emit import emit_module
from kerntree.coder.groups import root_program
from kerntree.coder.program import Program, Schedule
from kerntree.coder.rewrites import REWRITES
from kerntree.evaluator.export import export_graph, spec_of
from kerntree.plans.problem import Case, InputSpec, OutputSpec, Problem
from kerntree.plans.roofline import graph_cost

HEAD = "import torch\nimport torch.nn.functional as F\n\n\nclass Model(torch.nn.Module):\n"
OPERATORS = {
    "softmax": (HEAD + "    def forward(self, x):\n        return torch.softmax(x, dim=1)\n",
                [(4096, 393216)]),
    "layernorm": (HEAD + "    def __init__(self):\n        super().__init__()\n"
                  "        self.norm = torch.nn.LayerNorm((64, 256, 256))\n\n"
                  "    def forward(self, x):\n        return self.norm(x)\n",
                  [(16, 64, 256, 256)]),
    "rmsnorm": (HEAD + "    def forward(self, x):\n"
                "        return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)\n",
                [(112, 64, 512, 512)]),
    "gelu": (HEAD + "    def forward(self, x):\n        return F.gelu(x)\n", [(4096, 393216)]),
    "cross_entropy": (HEAD + "    def forward(self, x, y):\n"
                      "        return F.cross_entropy(x, y)\n", [(32768, 4096), (32768,)]),
}  # fmt: skip
BASE = Schedule(tile=True)
SCHEDULES = {
    "loops": BASE,
    "loops one pass": replace(BASE, one_pass=True),
    "loops one pass pipelined": replace(BASE, one_pass=True, pipeline=True),
    "whole": replace(BASE, keep_row=True),
    "whole stream": replace(BASE, keep_row=True, stream=True),
    "whole persist": replace(BASE, keep_row=True, persist=True),
    "columns": replace(BASE, order="reduce_outer", one_pass=True),
    "columns whole": replace(BASE, order="reduce_outer", keep_row=True),
    "columns whole stream": replace(BASE, order="reduce_outer", keep_row=True, stream=True),
    "split": replace(BASE, split=True, one_pass=True),
    "split stream": replace(BASE, split=True, one_pass=True, stream=True),
    "split whole": replace(BASE, split=True, keep_row=True, one_pass=True),
    "split whole stream": replace(BASE, split=True, keep_row=True, one_pass=True, stream=True),
}
CHOSEN = {
    "softmax": ["split whole", "split whole stream", "split", "loops one pass"],
    "layernorm": ["split whole", "split whole stream", "split", "split stream"],
    "rmsnorm": ["columns whole", "columns whole stream", "columns", "whole"],
    "gelu": ["whole", "whole stream", "whole persist"],
    "cross_entropy": ["whole", "loops", "loops one pass"],
}


def loaded(source, name, folder):
    path = Path(folder) / f"{name}.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def inputs_of(shapes, device):
    with torch.device(device):
        first = torch.randn(shapes[0])
        rest = [torch.randint(0, shapes[0][1], s) for s in shapes[1:]]
    return [first, *rest]


def problem_of(name, source, shapes, folder):
    module = loaded(source, f"{name}_problem", folder)
    with torch.device("meta"):
        model = module.Model()
    given = inputs_of(shapes, "meta")
    graph = export_graph(model, tuple(given))
    output = model(*given)
    case = Case(
        name="given",
        inputs=tuple(InputSpec(path=str(k), name=f"x{k}", tensor=spec_of(x))
                     for k, x in enumerate(given)),
        outputs=(OutputSpec(path="", tensor=spec_of(output)),),
        output_tree=0,
        graph=graph,
    )  # fmt: skip
    return module, Problem(name=name, path="p.py", folder="", source=source, cases=(case,))


def program_of(problem, schedule):
    graph = problem.cases[0].graph
    program = root_program(graph, target="triton")
    for kind in ("lower", "fuse"):
        listed = REWRITES[kind].applicable(graph, program)
        while listed:
            chosen = next((s for s in listed if s.target == "all"), listed[0])
            program = REWRITES[kind].apply(graph, program, chosen)
            listed = REWRITES[kind].applicable(graph, program)
    groups = tuple(replace(g, schedule=schedule) if g.lowered else g for g in program.groups)
    return Program(target="triton", groups=groups)


def milliseconds(call, flush, repeats=12):
    samples = []
    for _ in range(2):
        call()
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        samples.append(begin.elapsed_time(end))
    return statistics.median(samples)


def configs(candidate, best):
    """The first config, then neighbours of the best so far (`best()`), one size changed a time."""
    seen = []
    for _ in range(2):
        for name, values in candidate.tunables.items():
            for value in values:
                config = {**best(), name: value}
                if config not in seen:
                    seen.append(config)
                    yield config


def measured(name, *, until, flush, speed, folder):
    """Eager, torch.compile and every chosen schedule of one operator, in milliseconds."""
    device = torch.device("cuda")
    source, shapes = OPERATORS[name]
    module, problem = problem_of(name, source, shapes, folder)
    with device:
        model = module.Model()
    given = inputs_of(shapes, device)
    expected = model(*given)
    compiled = torch.compile(model)
    eager_ms = milliseconds(lambda: model(*given), flush)
    compile_ms = milliseconds(lambda: compiled(*given), flush)
    fewest_ms = graph_cost(problem.cases[0].graph).bytes / speed / 1e6
    print(
        f"{name}: eager {eager_ms:.3f}, compile {compile_ms:.3f}, fewest bytes {fewest_ms:.3f} ms",
        flush=True,
    )
    rows = []
    chosen = CHOSEN[name]
    for place, label in enumerate(chosen):
        begun = time.monotonic()
        share = max(until - begun, 5) / (len(chosen) - place)
        candidate = emit_module(problem, program_of(problem, SCHEDULES[label]))
        first = [{"config": dict(candidate.config), "ms": math.inf}]

        def best(label=label, first=first):
            timed = [r for r in rows if r["schedule"] == label and "ms" in r]
            return min([*first, *timed], key=operator.itemgetter("ms"))["config"]

        for number, config in enumerate(configs(candidate, best)):
            if time.monotonic() - begun > share:
                break
            row = {"schedule": label, "config": config}
            try:
                printed = loaded(candidate.source, f"{name}_{place}_{number}", folder)
                printed.CONFIG.update(config)
                with device:
                    kernel = printed.ModelNew()
                row["error"] = largest_difference(kernel(*given), expected)
                row["ms"] = ms = milliseconds(functools.partial(kernel, *given), flush)
            except Exception as failure:
                row["failed"] = f"{type(failure).__name__}: {str(failure)[-300:]}"
                print(f"  {label} {config}: {row['failed']}", flush=True)
            else:
                print(
                    f"  {label} {config}: {ms:.3f} ms, {compile_ms / ms:.2f} times compile, "
                    f"{fewest_ms / ms:.0%} of the fewest bytes, error {row['error']:.1e}",
                    flush=True,
                )
            rows.append(row)
    return {"eager_ms": eager_ms, "compile_ms": compile_ms, "fewest_ms": fewest_ms, "kernels": rows}


def largest_difference(got, expected):
    """In chunks, so that no third tensor of that size is needed."""
    pairs = zip(got.flatten().split(1 << 28), expected.flatten().split(1 << 28), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--only", nargs="*", default=list(OPERATORS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu_schedules.json"))
    args = parser.parse_args()
    torch.set_grad_enabled(False)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    large = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    speed = 2 * large.numel() / milliseconds(large.clone, flush) / 1e6
    del large
    print(f"copy {speed:.0f} GB/s", flush=True)
    found = {}
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        for place, name in enumerate(args.only):
            until = started + args.seconds * (place + 1) / len(args.only)
            found[name] = measured(name, until=until, flush=flush, speed=speed, folder=folder)
            torch.cuda.empty_cache()
    record = {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_gb_per_s": speed,
        "operators": found,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
