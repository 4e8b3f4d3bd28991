"""What a candidate costs beside its own work, from the journal of a search.

    python benchmarks/candidate_overhead.py --candidates 50

Searches an example until so many candidates were evaluated afresh. An evaluation records the
seconds of its stages (load with build, check, time), of the oracle and of the baseline it is timed
against; what is left of its total is overhead: starting the child, handing over inputs, waiting,
writing down. `load_s` is shown beside it, since a Python module's load is not all its compiler's.
Writes benchmarks/results/candidate_overhead_DEVICE.json; exit code 1 where the median is above
one second.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
STAGES = ("load", "check", "time", "oracle", "baseline")
LIMIT_S = 1.0


def evaluations(journal):
    """The fresh evaluations of a run, in order."""
    for line in journal.read_text().splitlines():
        event = json.loads(line)
        found = event.get("data", {}).get("evaluation")
        if found and not found["from_memo"]:
            yield found


def overhead(evaluation):
    seconds = evaluation["seconds"]
    return seconds["total"] - sum(seconds.get(stage, 0.0) for stage in STAGES)


def quantiles(values):
    ordered = sorted(values)
    return {
        "median": round(statistics.median(ordered), 3),
        "p90": round(ordered[min(int(0.9 * len(ordered)), len(ordered) - 1)], 3),
        "most": round(ordered[-1], 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--candidates", type=int, default=50)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--problem", type=Path, default=ROOT / "examples" / "softmax_rows.py")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kerntree-overhead-") as folder:
        run = Path(folder) / "run"
        command = [sys.executable, "-P", "-m", "kerntree", "search", str(args.problem)]
        command += ["--device", args.device, "--evaluations", str(args.candidates)]
        command += ["--out", str(run), "--cache", str(Path(folder) / "memo"), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"the search ended with {done.returncode}: {done.stderr[-2000:]}")
        found = list(evaluations(run / "journal.jsonl"))
    rest = [overhead(entry) for entry in found]
    environment = found[0]["environment"]
    facts = {
        "date": date.today().isoformat(),
        "command": f"python benchmarks/candidate_overhead.py --candidates {args.candidates}"
        f" --device {args.device}",
        "problem": args.problem.name,
        "device": environment["device"],
        "python": platform.python_version(),
        "versions": environment["versions"],
        "isolation": environment.get("isolation"),
        "candidates": len(found),
        "overhead_s": quantiles(rest),
        **{
            f"{stage}_s": quantiles([entry["seconds"].get(stage, 0.0) for entry in found])
            for stage in (*STAGES, "total")
        },
        "trace": [
            {"overhead": round(left, 3), "verdict": entry["verdict"], **entry["seconds"]}
            for left, entry in zip(rest, found, strict=True)
        ],
    }
    out = args.out or ROOT / "benchmarks" / "results" / f"candidate_overhead_{args.device}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{len(found)} candidates, overhead in seconds: {facts['overhead_s']}; {out}")
    sys.exit(facts["overhead_s"]["median"] > LIMIT_S)


if __name__ == "__main__":
    main()
