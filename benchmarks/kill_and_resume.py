"""Kills a search at random moments, resumes it, and counts from outside what it ran again.

    python benchmarks/kill_and_resume.py --kills 20

Every life but the last ends by SIGKILL at a random moment: to the whole process tree, or, every
other time, to the command alone. What is counted, is seen from outside: the children that the
search starts and the compilers that they run (by looking at the processes below it, and at the
source that each compiler reads), and the journal (by reading the file).

- After each kill nothing is left: no process, no mount, no temporary file.
- No life changes a whole line that the journal held before it.
- In the end the run is finished, and no config of a candidate was journaled as evaluated twice.
- Every build that was seen belongs to the next measurement in the journal; that is, nothing
  journaled is run again. Only the last builds of a life, cut off by the kill, may have no entry.

As root the experiment gets temporary directories of its own (a mount namespace), so that nobody
else's files count. Writes benchmarks/results/kill_and_resume.json. Exit code 1 if anything fails.
"""

import argparse
import itertools
import json
import os
import platform
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from kerntree.evaluator.process import children_of

ROOT = Path(__file__).parents[1]
PROBLEM = """\
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x * 2 + 1, dim=-1)


def get_inputs():
    return [torch.randn(256, 512)]


def get_init_inputs():
    return []
"""
MEASURED = ("evaluated", "duel", "reverified")
LOOK_SECONDS = 0.005
GONE_SECONDS = 10.0
LONGEST_LIFE = 16.0
PRIVATE = "KILL_AND_RESUME_PRIVATE"
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")
OTHERS = ("pytest-of-", "bash_jobs", "kerntree-kills-")  # not of the search that is watched
LOCKS = f"kerntree-{os.getuid()}"  # the directory of the locks that all searches of a user share


@dataclass(frozen=True)
class Build:
    """A compiler that a child ran: when it was seen, what it read, and the config it was given."""

    seen: float
    source: str
    config: dict[str, int]


def born(pid):
    """When a process began, in clock ticks: with its number, its identity; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])


def command_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def descendants(pid):
    found, pending = [], children_of(pid)
    while pending:
        found.append(pending.pop())
        pending += children_of(found[-1])
    return found


class Watch:
    """Looks at the processes below one: `seen`, the evaluator's `started` children, `builds`."""

    def __init__(self, pid):
        self.pid = pid
        self.seen, self.started, self.builds = {}, set(), []
        self._read = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while not self._stop.wait(LOOK_SECONDS):
            self.look()

    def look(self):
        for process in children_of(self.pid):
            self._remember(process)
            if not any(b"kerntree.evaluator.zygote" in word for word in command_of(process)):
                for other in descendants(process):
                    self._remember(other)
                continue
            for child in children_of(process):
                identity = self._remember(child)
                if identity[1] is not None:
                    self.started.add(identity)
                for below in descendants(child):
                    self._compiler(self._remember(below))

    def _remember(self, pid):
        identity = (pid, born(pid))
        if identity[1] is not None:
            self.seen.setdefault(pid, identity[1])
        return identity

    def _compiler(self, identity):
        words = command_of(identity[0])
        if identity in self._read or not words or not words[0].endswith(b"cc1plus"):
            return
        paths = [word.decode() for word in words if word.endswith(b"/kernel.cpp")]
        if not paths:
            return
        try:
            source = Path(f"/proc/{identity[0]}/root{paths[0]}").read_text()
        except OSError:
            return
        self._read.add(identity)
        given = [b.decode() for a, b in itertools.pairwise(words) if a == b"-D"]
        config = {name: int(value) for name, _, value in (pair.partition("=") for pair in given)
                  if value.isdigit()}  # fmt: skip
        self.builds.append(Build(time.time(), source, config))

    def end(self):
        self._stop.set()
        self._thread.join()

    def alive(self):
        return [pid for pid, begin in self.seen.items() if born(pid) == begin]


def mounts():
    return Path("/proc/self/mountinfo").read_text().splitlines()


def temporary_files():
    return {
        str(path)
        for folder in TEMPORARY
        if Path(folder).is_dir()
        for path in Path(folder).iterdir()
        if not path.name.startswith(OTHERS) and path.name != LOCKS
    }


def with_private_directories():
    """Starts this script again where the temporary directories are its own, if that can be."""
    if os.environ.get(PRIVATE) or os.geteuid() != 0 or not shutil.which("unshare"):
        return
    mount = " && ".join(f"mount -t tmpfs tmpfs {d}" for d in TEMPORARY if Path(d).is_dir())
    command = ["unshare", "--mount", "sh", "-c", f'{mount} && exec "$@"', "sh"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode == 0:
        os.environ[PRIVATE] = "1"
        os.execvp(command[0], [*command, sys.executable, *sys.argv])


def whole_lines(journal):
    return journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []


def start(place, run, *args):
    with (place / "said.txt").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "kerntree", *args, "--json"],
            cwd=place,
            stdout=subprocess.DEVNULL,
            stderr=said,
        )


def kill(process, watch, *, whole):
    """SIGKILL to all of the tree, or to the command alone; the tree must be gone soon after."""
    victims = [process.pid, *descendants(process.pid)] if whole else [process.pid]
    for pid in victims:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    deadline = time.monotonic() + GONE_SECONDS
    while watch.alive() and time.monotonic() < deadline:
        time.sleep(0.02)


def unexplained(builds, events, life):
    """Builds that led to no measurement of the same kernel and config, though the life went on."""
    nodes = {e["data"]["identity"]: e["data"]["candidate"]["source"]
             for e in events if e["kind"] == "node"}  # fmt: skip
    mine = events[life[0] : life[1]]
    found = []
    for build in builds:
        after = next((e for e in mine if e["kind"] in MEASURED and e["time"] > build.seen), None)
        if after is None:
            continue
        sides = [after["data"], after["data"].get("incumbent")]
        if not any(
            side and build.source.strip() in nodes[side["node"]] and build.config == side["config"]
            for side in sides
        ):
            found.append(f"{build.config} built before {after['kind']} {after['sequence']}")
    return found


def twice(events):
    """Measurements that stand in the journal more than once."""
    keys = []
    for event in events:
        data = event["data"]
        if event["kind"] == "evaluated" and data["evaluation"]["verdict"] != "lost":
            keys.append(("evaluated", data["node"], json.dumps(data["config"], sort_keys=True)))
        if event["kind"] == "duel":
            keys.append(("duel", data["node"], json.dumps([data["config"], data["incumbent"]])))
    return [key for key in set(keys) if keys.count(key) > 1]


def trial(*, kills, evaluations, seed, place, longest=LONGEST_LIFE):
    """The whole experiment; returns its record, with a list of `faults`."""
    (place / "op.py").write_text(PROBLEM)
    journal = place / "run" / "journal.jsonl"
    draw = random.Random(seed)
    before_mounts, before_files = mounts(), temporary_files()
    lives, faults, builds_of = [], [], []
    for number in range(kills + 1):
        last = number == kills
        args = ["resume", "run"] if (place / "run" / "run.toml").exists() else [
            "search", "op.py", "--evaluations", str(evaluations), "--seed", str(seed),
            "--out", "run", "--cache", str(place / "memo")]  # fmt: skip
        held = whole_lines(journal)
        process = start(place, "run", *args)
        watch = Watch(process.pid)
        moment = draw.uniform(0.2, longest)
        try:
            process.wait(600 if last else moment)
        except subprocess.TimeoutExpired:
            kill(process, watch, whole=number % 2 == 0)
        watch.end()
        for pid in watch.alive():
            faults.append(f"life {number}: process {pid} outlived the search")
        if mounts() != before_mounts:
            faults.append(f"life {number}: a mount stayed")
        if left := temporary_files() - before_files:
            faults.append(f"life {number}: temporary files stayed: {sorted(left)}")
        lines = whole_lines(journal)
        if lines[: len(held)] != held:
            faults.append(f"life {number}: lines of the journal changed")
        builds_of.append((watch.builds, (len(held), len(lines))))
        lives.append(
            {
                "seconds": None if last else round(moment, 2),
                "exit": process.returncode,
                "children": len(watch.started),
                "builds": len(watch.builds),
                "new_events": len(lines) - len(held),
            }
        )
    if lives[-1]["exit"] != 0:
        faults.append(f"the last life failed: {(place / 'said.txt').read_text()[-500:]}")
    events = [json.loads(line) for line in whole_lines(journal)]
    if not events or events[-1]["kind"] != "finished":
        faults.append("the run did not end")
    faults += [f"measured twice: {key}" for key in twice(events)]
    for number, (builds, life) in enumerate(builds_of):
        faults += [f"life {number}: {what}" for what in unexplained(builds, events, life)]
    measured = [e for e in events if e["kind"] in MEASURED]
    return {
        "kills": sum(life["exit"] == -signal.SIGKILL for life in lives),
        "evaluations": sum(e["kind"] == "evaluated" for e in measured),
        "duels": sum(e["kind"] != "evaluated" for e in measured),
        "children": sum(life["children"] for life in lives),
        "builds": sum(life["builds"] for life in lives),
        "lives": lives,
        "faults": faults,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--evaluations", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "benchmarks/results/kill_and_resume.json"
    )
    args = parser.parse_args()
    with_private_directories()
    with tempfile.TemporaryDirectory(prefix="kerntree-kills-") as folder:
        record = trial(
            kills=args.kills, evaluations=args.evaluations, seed=args.seed, place=Path(folder)
        )
    record = {
        "date": date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "command": f"python benchmarks/kill_and_resume.py --kills {args.kills}",
        **record,
    }
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: value for key, value in record.items() if key != "lives"}, indent=1))
    sys.exit(bool(record["faults"]))


if __name__ == "__main__":
    main()
