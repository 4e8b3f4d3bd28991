"""Searches problems on a GPU and times what is found against eager and torch.compile.

What the scripts that measure sets of problems have in common. Each problem gets a search of its
own. Afterwards its best kernel, eager and torch.compile are timed in turn in one process, by CUDA
events, on fresh inputs and with the L2 cache flushed: medians and ratios come from that run alone.
"""

import argparse
import importlib.util
import json
import math
import platform
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch
import triton

ROOT = Path(__file__).parents[1]
PROBLEMS = ROOT / "benchmarks" / "problems"
_WARM = 2  # repeats that are not counted
_FRESH = 5  # repeats on the same inputs, which an operator in place changes


def load(path, name):
    """A module from a file."""
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def cases_of(problem):
    """Functions that make inputs, by the names of the cases."""
    if not hasattr(problem, "get_cases"):
        return {"given": problem.get_inputs}
    cases = problem.get_cases()
    return {n: c["inputs"] if isinstance(c, dict) else c for n, c in cases.items()}


def event_ms(call, flush):
    """Milliseconds on the device: the flushes before last longer than launching the call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(8):
        flush.zero_()
    begin.record()
    result = call()
    end.record()
    torch.cuda.synchronize()
    del result
    return begin.elapsed_time(end)


def copy_speed(flush):
    """Gigabytes a second of a device-to-device copy, read and written."""
    large = torch.empty(1 << 30, dtype=torch.uint8, device=flush.device)
    copies = [event_ms(large.clone, flush) for _ in range(12)]
    return 2 * large.numel() / statistics.median(copies[2:]) / 1e6


def largest_difference(got, expected):
    """The largest among all tensors, in chunks, so that no third tensor of that size is needed."""
    worst = 0.0
    for mine, theirs in zip(got, expected, strict=True):
        pairs = zip(mine.flatten().split(1 << 28), theirs.flatten().split(1 << 28), strict=True)
        worst = max(worst, *(float((a - b).abs().max()) for a, b in pairs))
    return worst


def _tensors(result, given):
    """What a call returned, and what it may have changed."""
    listed = result if isinstance(result, tuple | list) else [result]
    return [t for t in (*listed, *given) if isinstance(t, torch.Tensor) and t.is_floating_point()]


def _checked(kernel, reference, make):
    """The largest difference on inputs of which the kernel has copies."""
    given = make()
    if sum(t.numel() for t in given) > 1 << 30:  # no room for copies, and nothing in place
        return largest_difference([kernel(*given)], [reference(*given)])
    copies = [t.clone() for t in given]
    return largest_difference(_tensors(kernel(*copies), copies), _tensors(reference(*given), given))


def timed_case(problem, printed, make, repeats, flush):
    """Milliseconds of eager, torch.compile and the kernel, in turn; and the largest difference."""

    def fresh():
        with flush.device:
            return make()

    torch._dynamo.reset()  # torch.compile is compiled for the sizes of this case
    with flush.device:
        torch.manual_seed(0)
        reference = problem.Model(*problem.get_init_inputs())
        kernel = printed.ModelNew(*problem.get_init_inputs())
        kernel.load_state_dict(reference.state_dict())
        again = problem.Model(*problem.get_init_inputs())
    sides = {"eager": reference, "compile": torch.compile(again), "kernel": kernel}
    samples = {side: [] for side in sides}
    with torch.no_grad():
        worst = _checked(kernel, reference, fresh)
        for repeat in range(repeats + _WARM):
            if repeat % _FRESH == 0:
                given = None
                given = fresh()
            for side in list(sides)[:: 1 if repeat % 2 else -1]:
                ms = event_ms(lambda run=sides[side], x=given: run(*x), flush)
                if repeat >= _WARM:
                    samples[side].append(ms)
    medians = {f"{side}_ms": statistics.median(values) for side, values in samples.items()}
    return {
        **medians,
        "over_eager": medians["eager_ms"] / medians["kernel_ms"],
        "over_compile": medians["compile_ms"] / medians["kernel_ms"],
        "largest_difference": worst,
    }


def timed(name, kernel_path, repeats):
    """The records of all cases of a problem by name, and the speed of a copy."""
    problem = load(PROBLEMS / f"{name}.py", name)
    printed = load(kernel_path, f"{name}_best")
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=torch.device("cuda"))
    speed = copy_speed(flush)
    cases = {
        case: timed_case(problem, printed, make, repeats, flush)
        for case, make in cases_of(problem).items()
    }
    return {"copy_gb_per_s": speed, "cases": cases}


def searched(name, out, seconds, path=None):
    """Runs one search as a user would; returns its record and the best kernel's file.

    The problem is benchmarks/problems/NAME.py unless `path` is given.
    """
    run = out / name
    kerntree = [sys.executable, "-P", "-m", "kerntree"]
    command = [*kerntree, "search", str(path or PROBLEMS / f"{name}.py"), "--time", seconds,
               "--device", "cuda", "--out", str(run), "--cache", str(out / "memo"),
               "--json"]  # fmt: skip
    begun = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name}: the search ended with {done.returncode}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout)
    wall = round(time.monotonic() - begun, 1)
    best = run / "best.py"
    record = {
        "search_s": wall, "evaluations": found["evaluations"], "plan": found["plan"],
        "speedup_in_search": found["speedup"], "record": best.exists(), "reason": found["reason"],
        "config": (found["best"] or {}).get("config"),
    }  # fmt: skip
    if not best.exists():
        leader = subprocess.run(
            [*kerntree, "export", str(run), "--leader", "-o", str(best)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if leader.returncode:
            sys.exit(f"{name}: {leader.stderr}")
    return record, best


def geometric_mean(values):
    """The geometric mean of positive numbers."""
    return math.exp(statistics.fmean(map(math.log, values)))


def run_set(script, description, names, *, seconds, record):
    """The command line of a set: searches and times its problems, and writes the results.

    `record` turns what `searched` and `timed` say of a problem, by its name, into its entry, which
    holds `over_compile` and `over_eager` itself or in each of its `cases`.
    """
    stem = Path(script).stem
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--time", default=seconds, help="of each search (%(default)s)")
    parser.add_argument("--repeats", type=int, default=20, help="that are timed (%(default)s)")
    parser.add_argument("--only", nargs="*", default=list(names), choices=list(names))
    parser.add_argument("--runs", type=Path, default=Path("runs") / stem)
    parser.add_argument("--timed", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=ROOT / f"benchmarks/results/{stem}.json")
    args = parser.parse_args()
    if args.timed:
        print(json.dumps(timed(*args.timed, args.repeats)))
        return
    found = {}
    for name in args.only:
        search, best = searched(name, args.runs, args.time)
        own = [sys.executable, script, "--repeats", str(args.repeats), "--timed", name, str(best)]
        done = subprocess.run(own, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: timing failed: {done.stderr[-2000:]}")
        found[name] = {**search, **record(name, json.loads(done.stdout.splitlines()[-1]))}
        print(name, json.dumps(found[name]), flush=True)
        head = {**facts(f"python benchmarks/{stem}.py --time {args.time}"), **_means(found)}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({**head, "problems": found}, indent=1) + "\n")
    for key, value in _means(found).items():
        print(f"{key.replace('_', ' ')}: {value:.3f}")


def facts(command):
    """Date, device and versions of a run, and the command that gives it."""
    return {
        "date": date.today().isoformat(),
        "device": torch.cuda.get_device_name(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "command": command,
    }


def _means(found):
    """Geometric means over all problems, of which each counts alike."""
    means = {}
    for ratio in ("over_compile", "over_eager"):
        each = [
            geometric_mean([case[ratio] for case in entry.get("cases", {"": entry}).values()])
            for entry in found.values()
        ]
        means[f"geometric_mean_{ratio}"] = geometric_mean(each)
    return means
