"""Searches the five memory-bound examples on this CPU and states the ratios to both baselines.

    python benchmarks/cpu_examples.py --time 90s

Each example gets a search of its own. Afterwards its kernel, eager and torch.compile are timed in
turn in one process on fresh copies of the inputs: medians and ratios come from that run alone.
Writes benchmarks/results/cpu_examples.json.
"""

import argparse
import copy
import importlib.util
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
EXAMPLES = (
    "softmax_rows",
    "bias_gelu_scale",
    "layernorm_residual",
    "rmsnorm_residual_inplace",
    "cross_entropy",
)


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def timed(name, kernel_path, repeats):
    """Milliseconds of eager, torch.compile and the kernel, in turn; and the largest difference."""
    problem = load(ROOT / "examples" / f"{name}.py", name)
    printed = load(kernel_path, f"{name}_best")
    torch.manual_seed(0)
    reference = problem.Model(*problem.get_init_inputs())
    kernel = printed.ModelNew(*problem.get_init_inputs())
    kernel.load_state_dict(reference.state_dict())
    sides = {"eager": reference, "compile": torch.compile(reference), "kernel": kernel}
    samples = {side: [] for side in sides}
    worst = 0.0
    with torch.no_grad():
        for repeat in range(repeats + 2):
            given = problem.get_inputs()
            results = {}
            for side, run in sides.items():
                inputs = copy.deepcopy(given)
                start = time.perf_counter()
                results[side] = run(*inputs)
                if repeat >= 2:
                    samples[side].append((time.perf_counter() - start) * 1e3)
                results[side] = results[side].double()
            worst = max(worst, (results["eager"] - results["kernel"]).abs().max().item())
    return {side: statistics.median(values) for side, values in samples.items()}, worst


def _plan(kernel):
    header = []
    for line in kernel.read_text().splitlines():
        if not line.startswith("#"):
            break
        header.append(line.removeprefix("#").strip())
    return " ".join(header).split("plan: ", 1)[1].split(" Run this file")[0].strip()


def cpu_name():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--time", default="90s", help="wall time of each search")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs")
    options = parser.parse_args()
    rows = []
    for name in EXAMPLES:
        run = options.runs / f"bench-{name}-{int(time.time())}"
        done = subprocess.run(
            [sys.executable, "-P", "-m", "kerntree", "search",
             str(ROOT / "examples" / f"{name}.py"),
             "--time", options.time, "--out", str(run), "--json"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        kernel = run / "exported.py"
        exported = subprocess.run(
            [sys.executable, "-P", "-m", "kerntree", "export", str(run), "--leader",
             "-o", str(kernel)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode or exported.returncode:
            print(name, "no kernel:", done.stderr[-300:], exported.stderr)
            rows.append({"problem": name, "kernel": None})
            continue
        found = json.loads(done.stdout)
        medians, worst = timed(name, kernel, options.repeats)
        row = {
            "problem": name,
            "ms": {side: round(value, 3) for side, value in medians.items()},
            "over_eager": round(medians["eager"] / medians["kernel"], 3),
            "over_compile": round(medians["compile"] / medians["kernel"], 3),
            "largest_difference": worst,
            "record": found["speedup"] is not None,
            "evaluations": found["evaluations"],
            "plan": _plan(kernel),
        }
        rows.append(row)
        print(json.dumps(row), flush=True)
    good = [row for row in rows if row.get("ms")]
    result = {
        "device": cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "date": date.today().isoformat(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python benchmarks/cpu_examples.py", *sys.argv[1:]]),
        "search_time": options.time,
        "geometric_mean_over_eager": _mean([row["over_eager"] for row in good]),
        "geometric_mean_over_compile": _mean([row["over_compile"] for row in good]),
        "problems": rows,
    }
    path = ROOT / "benchmarks" / "results" / "cpu_examples.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    print(
        f"over eager {result['geometric_mean_over_eager']}, "
        f"over torch.compile {result['geometric_mean_over_compile']}: {path}"
    )


def _mean(ratios):
    return round(math.exp(sum(map(math.log, ratios)) / len(ratios)), 3) if ratios else None


if __name__ == "__main__":
    main()
