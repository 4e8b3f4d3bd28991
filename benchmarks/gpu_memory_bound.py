"""Searches five memory-bound problems on a GPU and states the ratios to both baselines.

    python benchmarks/gpu_memory_bound.py --time 90s

Each problem gets a search of its own, strict. Afterwards its best kernel, eager and torch.compile
are timed in turn in one process, by CUDA events, on fresh inputs and with the L2 cache flushed:
medians and ratios come from that run alone. `share` is the time that the fewest bytes take at the
speed of a device-to-device copy in the same process, over the kernel's time. Writes
benchmarks/results/gpu_memory_bound.json.
"""

import argparse
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
PROBLEMS = {
    "cross_entropy_rows": lambda: 32768 * 4096 * 4 + 32768 * 8,
    "layernorm_images": lambda: 2 * 16 * 64 * 256 * 256 * 4 + 2 * 64 * 256 * 256 * 4,
    "softmax_long_rows": lambda: 2 * 4096 * 393216 * 4,
    "rmsnorm_channels": lambda: 2 * 112 * 64 * 512 * 512 * 4,
    "gelu_large": lambda: 2 * 4096 * 393216 * 4,
}


def load(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


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


def largest_difference(got, expected):
    """In chunks, so that no third tensor of that size is needed."""
    pairs = zip(got.flatten().split(1 << 28), expected.flatten().split(1 << 28), strict=True)
    return max(float((a - b).abs().max()) for a, b in pairs)


def fresh(problem, device):
    with device:
        return problem.get_inputs()


def timed(name, kernel_path, repeats):
    """Milliseconds of eager, torch.compile and the kernel, in turn; and the largest difference."""
    device = torch.device("cuda")
    problem = load(ROOT / "benchmarks" / "problems" / f"{name}.py", name)
    printed = load(kernel_path, f"{name}_best")
    flush = torch.empty(256 << 20, dtype=torch.uint8, device=device)
    large = torch.empty(1 << 30, dtype=torch.uint8, device=device)
    copies = [event_ms(large.clone, flush) for _ in range(12)]
    speed = 2 * large.numel() / statistics.median(copies[2:]) / 1e6  # GB/s
    del large
    with device:
        torch.manual_seed(0)
        reference = problem.Model(*problem.get_init_inputs())
        kernel = printed.ModelNew(*problem.get_init_inputs())
        kernel.load_state_dict(reference.state_dict())
        again = problem.Model(*problem.get_init_inputs())
    sides = {"eager": reference, "compile": torch.compile(again), "kernel": kernel}
    samples = {side: [] for side in sides}
    with torch.no_grad():
        given = fresh(problem, device)
        worst = largest_difference(kernel(*given), reference(*given))
        for repeat in range(repeats + 2):
            if repeat % 5 == 0:
                given = None
                given = fresh(problem, device)
            for side in list(sides)[:: 1 if repeat % 2 else -1]:
                ms = event_ms(lambda run=sides[side], x=given: run(*x), flush)
                if repeat >= 2:
                    samples[side].append(ms)
    medians = {f"{side}_ms": statistics.median(values) for side, values in samples.items()}
    fewest = PROBLEMS[name]() / speed / 1e6
    return {
        **medians,
        "over_eager": medians["eager_ms"] / medians["kernel_ms"],
        "over_compile": medians["compile_ms"] / medians["kernel_ms"],
        "share_of_fewest_bytes": fewest / medians["kernel_ms"],
        "copy_gb_per_s": speed,
        "largest_difference": worst,
    }


def searched(name, out, seconds):
    """Runs one search as a user would; returns its record and the best kernel's file."""
    run = out / name
    problem = ROOT / "benchmarks" / "problems" / f"{name}.py"
    kerntree = [sys.executable, "-P", "-m", "kerntree"]
    command = [*kerntree, "search", str(problem), "--time", seconds, "--device", "cuda",
               "--out", str(run), "--cache", str(out / "memo"), "--json"]  # fmt: skip
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--time", default="90s")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--only", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--runs", type=Path, default=Path("runs/gpu_memory_bound"))
    parser.add_argument("--timed", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/gpu_memory_bound.json"
    )
    args = parser.parse_args()
    if args.timed:
        print(json.dumps(timed(args.timed[0], args.timed[1], args.repeats)))
        return
    found = {}
    for name in args.only:
        record, best = searched(name, args.runs, args.time)
        own = [sys.executable, __file__, "--repeats", str(args.repeats), "--timed", name, str(best)]
        done = subprocess.run(own, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{name}: timing failed: {done.stderr[-2000:]}")
        found[name] = {**record, **json.loads(done.stdout.splitlines()[-1])}
        print(name, json.dumps(found[name]), flush=True)
        ratios = [entry["over_compile"] for entry in found.values()]
        facts = {
            "date": date.today().isoformat(),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "command": f"python benchmarks/gpu_memory_bound.py --time {args.time}",
            "geometric_mean_over_compile": math.exp(statistics.fmean(map(math.log, ratios))),
            "problems": found,
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"geometric mean over torch.compile: {facts['geometric_mean_over_compile']:.3f}")


if __name__ == "__main__":
    main()
