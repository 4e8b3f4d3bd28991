"""Has KernelBench's own evaluator judge what a short search makes of KernelBench's problems.

    python benchmarks/kernelbench_check.py --kernelbench PATH [PROBLEM ...]

PATH is a checkout of KernelBench, from which the problems and the evaluator are read; neither is
part of this project. A problem is a number of level 1, for example 23. Each is searched, and the
printed module (the leader where there is no record) goes to `eval_kernel_against_ref` in a process
of its own, in float32 at its tolerance of 1e-4. The times in the results are KernelBench's
readings of both sides, one after the other. Exit code 0 only if all passed. Writes
benchmarks/results/kernelbench_check.json.
"""

import argparse
import importlib
import json
import subprocess
import sys
import types
from pathlib import Path

import torch
from gpu_search import ROOT, facts, searched

# Problems whose inputs KernelBench makes quickly enough on the CPU; labels of type int64 are left
# out, since its evaluator hands the reference all inputs as float32.
LEVEL_1 = (23, 26, 36, 40, 34, 47, 49, 51, 88, 94, 98, 99, 100)
_UNUSED = {  # what it imports and evaluating needs not: clients of models
    "dotenv": ("load_dotenv",), "openai": ("OpenAI",), "litellm": ("completion",), "requests": (),
}  # fmt: skip


def problem_file(kernelbench, number):
    """The file of a problem of level 1."""
    found = list((kernelbench / "KernelBench" / "level1").glob(f"{number}_*.py"))
    if len(found) != 1:
        sys.exit(f"{kernelbench} has no problem {number} in KernelBench/level1")
    return found[0]


def evaluator_of(kernelbench):
    """KernelBench's module `eval`; what it does not use and is not installed is stood in for."""
    for name, wanted in _UNUSED.items():
        try:
            importlib.import_module(name)
        except ImportError:
            stand_in = types.ModuleType(name)
            for function in wanted:
                setattr(stand_in, function, lambda *_, **__: None)
            sys.modules[name] = stand_in
    sys.path.insert(0, str(kernelbench / "src"))
    return importlib.import_module("kernelbench.eval")


def judge(kernelbench, problem, kernel, trials):
    """What KernelBench says of a module, as JSON on the last line of the output."""
    found = evaluator_of(kernelbench).eval_kernel_against_ref(
        Path(problem).read_text(),
        Path(kernel).read_text(),
        num_correct_trials=trials,
        measure_performance=True,
        num_perf_trials=10,
        backend="triton",
        device=torch.device("cuda", 0),
        precision=torch.float32,
    )
    said = {"compiled": False, "correct": False, "metadata": {"error": "no result"}}
    if found is not None:
        said = {
            "compiled": found.compiled,
            "correct": found.correctness,
            "kernel_ms": found.runtime,
            "eager_ms": found.ref_runtime,
            "metadata": found.metadata,
        }
    print(json.dumps(said, default=str))


def searched_and_judged(args, path):
    """The entry of a problem: what the search found and what KernelBench says of it."""
    try:
        search, best = searched(path.stem, args.runs, args.time, path)
    except SystemExit as error:
        return {"correct": False, "error": str(error)}
    own = [sys.executable, __file__, "--kernelbench", str(args.kernelbench), "--trials",
           str(args.trials), "--judged", str(path), str(best)]  # fmt: skip
    done = subprocess.run(own, capture_output=True, text=True, check=False)
    try:
        return {**json.loads(done.stdout.splitlines()[-1]), **search}
    except (IndexError, ValueError):
        return {"correct": False, "error": done.stderr[-2000:], **search}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernelbench", type=Path, required=True, help="a checkout of it")
    parser.add_argument("problems", nargs="*", type=int, default=LEVEL_1)
    parser.add_argument("--time", default="25s", help="of each search (%(default)s)")
    parser.add_argument("--trials", type=int, default=5, help="of KernelBench's (%(default)s)")
    parser.add_argument("--runs", type=Path, default=Path("runs/kernelbench_check"))
    parser.add_argument("--judged", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/kernelbench_check.json"
    )
    args = parser.parse_args()
    if args.judged:
        return judge(args.kernelbench, *args.judged, args.trials)
    entries = {}
    for number in args.problems:
        path = problem_file(args.kernelbench, number)
        entries[path.stem] = searched_and_judged(args, path)
        print(path.stem, json.dumps(entries[path.stem]), flush=True)
        passed = sum(entry["correct"] for entry in entries.values())
        command = f"python benchmarks/kernelbench_check.py --time {args.time}"
        record = {**facts(command), "passed": passed, "of": len(entries), "problems": entries}
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{passed} of {len(entries)} passed")
    return 0 if passed == len(entries) else 1


if __name__ == "__main__":
    sys.exit(main())
