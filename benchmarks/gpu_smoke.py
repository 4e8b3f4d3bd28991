"""Exercises the evaluator on a GPU, step by step, from the driver's calls to whole evaluations.

    python benchmarks/gpu_smoke.py [STEP ...] [--seconds 170]

Each step prints one line, PASS or FAIL with its seconds and what it saw; a failed step does not
keep the next from running. Steps that would start after `--seconds` are skipped and say so. Exit
code 0 only if all steps passed.
"""

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import torch
from gpu_smoke_texts import (
    BIG_RMSNORM,
    BIG_SOFTMAX,
    GEMM,
    HEAD,
    HOSTILE,
    IN_PLACE,
    LENDER,
    PLAIN,
    SIDE_STREAM,
    SMALL,
    SOFTMAX_KERNEL,
    TOO_BIG,
    TRITON,
)

from kerntree.evaluator.device_block import BlockRefused, CudaLending, untouched
from kerntree.evaluator.opening import open_evaluator
from kerntree.evaluator.oracle_ground import gpu_facts
from kerntree.evaluator.process import ChildSpec, Zygote
from kerntree.evaluator.settings import Deadlines, EvaluatorSettings, TimingRules
from kerntree.evaluator.tensor_block import encode, layout_of, pack, spec_of
from kerntree.evaluator.versions import versions
from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import EvaluationRequest

GIB = 1 << 30


class Smoke:
    """The steps, and what they share: temporary files, open evaluators."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.lending = None

    # --- the driver, and processes that share memory ----------------------------------------

    def facts(self):
        found = gpu_facts()
        assert not isinstance(found, str), found
        return f"{found.model_dump()} {versions()}"

    def blocks(self):
        self.lending = CudaLending()
        shapes = [torch.empty(5, 3), torch.empty(7, dtype=torch.bool), torch.empty(0, 4)]
        layout = layout_of([spec_of(t) for t in shapes])
        before = torch.cuda.mem_get_info()[0]
        lent = self.lending.lend(layout, poison=True)
        assert untouched(lent.tensors) and lent.tensors[0].isnan().all()
        lent.tensors[0].fill_(1)
        lent.tensors[1].fill_(True)
        assert not untouched(lent.tensors)
        taken = before - torch.cuda.mem_get_info()[0]
        del lent
        back = before - torch.cuda.mem_get_info()[0]
        start = time.perf_counter()
        for _ in range(20):
            self.lending.lend(layout)
        each = (time.perf_counter() - start) / 20
        return f"{taken >> 20} MiB taken, {back >> 20} left after; {each * 1e3:.2f} ms a block"

    def between_processes(self):
        lending = CudaLending()
        process = subprocess.Popen(
            [sys.executable, "-c", LENDER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            handle = process.stdout.readline().strip()
            layout = layout_of(
                [spec_of(torch.empty(1000, 7)), spec_of(torch.empty(3, dtype=torch.bfloat16))]
            )
            start = time.perf_counter()
            with lending.opened(handle, layout) as tensors:
                assert untouched(tensors)
                tensors[0].fill_(2)
                tensors[1].fill_(0.5)
            seconds = time.perf_counter() - start
            process.stdin.write("\n")
            process.stdin.flush()
            said = process.stdout.readline().strip()
            assert said == "14000.0 1.5", said
            large = layout_of([spec_of(torch.empty(1 << 24))])
            refused = [_refused(lending, handle, large), _refused(lending, "00" * 64, layout)]
            assert all(refused), refused
        finally:
            process.kill()
            process.wait()
        return f"opened, written and closed in {seconds * 1e3:.2f} ms; {refused}"

    def child(self):
        """One child behind its walls, spoken to without a supervisor."""
        lending = CudaLending()
        start = time.perf_counter()
        zygote = Zygote.start(threads=2, device="cuda")
        said = [f"zygote {time.perf_counter() - start:.2f} s"]
        try:
            for source in (
                "class ModelNew(nn.Module):\n    def forward(self, x):\n        return x * 2\n",
                TRITON + "@triton.jit\ndef k(x, y):\n    at = tl.arange(0, 1024)\n"
                "    tl.store(y + at, 2 * tl.load(x + at))\n"
                "class ModelNew(nn.Module):\n    def forward(self, x):\n"
                "        y = torch.empty_like(x)\n        k[(1,)](x, y)\n        return y\n",
            ):
                said.append(self._one_child(zygote, HEAD + source, lending))
        finally:
            zygote.close()
        return "; ".join(said)

    def _one_child(self, zygote, source, lending):
        times = []
        clock = time.perf_counter
        start = clock()
        child = zygote.spawn(
            ChildSpec(
                threads=2,
                memory_bytes=32 << 30,
                device="cuda",
                environment={"TRITON_CACHE_DIR": "/tmp/triton"},
            )
        )
        times.append(("spawn", clock() - start))

        def ask(message, fds=(), name=None):
            begin = clock()
            reply, _ = child.request(message, fds=fds, timeout=60)
            times.append((name or message["op"], clock() - begin))
            assert reply["ok"], reply
            return reply

        try:
            layout, fd = pack([])
            ask(
                {
                    "op": "load", "source": source, "class": "ModelNew", "config": None, "seed": 0,
                    "init": {"list": []}, "init_layout": layout.model_dump(mode="json"),
                    "state": [], "state_layout": layout.model_dump(mode="json"), "folder": "",
                    "mode": "as_is", "compile": False,
                },
                fds=(fd, fd),
            )  # fmt: skip
            os.close(fd)
            x = torch.randn(32, 32, device="cuda")
            tree, tensors = encode([x])
            layout = layout_of([spec_of(x)])
            plain = layout.model_dump(mode="json")
            reply = ask({"op": "inputs", "slot": 0, "args": tree, "paths": ["0"], "layout": plain})
            with lending.opened(reply["handle"], layout) as targets:
                targets[0].copy_(tensors[0])
            expected = {"layout": plain, "tree": 0, "mutated": [], "buffers": []}
            reply = ask({"op": "run", "slot": 0, **expected})
            with lending.opened(reply["handle"], layout) as got:
                assert torch.equal(got[0], x * 2)
            reply = ask({"op": "time", "slots": [0] * 12, "warmup": 2})
            microseconds = [round(ns / 1e3, 1) for ns in reply["ns"]]
            reply = ask({"op": "submit", **expected})
            with lending.opened(reply["handle"], layout) as got:
                assert torch.equal(got[0], x * 2)
            ask({"op": "release", "slots": [0]})
            level = child.level
        finally:
            child.close()
        spent = ", ".join(f"{name} {seconds:.2f}" for name, seconds in times)
        return f"{level}: {spent}; calls {microseconds} us"

    # --- whole evaluations --------------------------------------------------------------------

    @contextlib.contextmanager
    def opened(self, name, text, **settings):
        path = self.folder / f"{name}.py"
        path.write_text(HEAD + text)
        start = time.perf_counter()
        with _sampled() as peak:
            problem, evaluator = open_evaluator(
                path,
                settings=EvaluatorSettings(
                    **{
                        "deadlines": Deadlines(run=6.0),
                        "timing": TimingRules(pairs_low=6, pairs_high=12, seconds_per_case=2.0),
                        **settings,
                    }
                ),
                memo_directory=self.folder / f"memo_{name}",
                work_directory=self.folder / f"work_{name}",
                device="cuda",
                waiting=print,
            )
            try:
                said = [f"open {time.perf_counter() - start:.1f} s"]
                said += [f"note: {warning}" for warning in problem.warnings]
                start = time.perf_counter()
                for fact in evaluator.baselines():
                    case = problem.cases[0].name
                    ms = fact.median_ns.get(case, float("nan")) / 1e6
                    said.append(f"{fact.name} {ms:.4f} ms {fact.message[:300]}")
                said.append(f"baselines {time.perf_counter() - start:.1f} s")
                yield Opened(
                    problem, evaluator, HEAD + TRITON + text.split("def get_inputs")[0], said
                )
            finally:
                evaluator.close()
        said.append(f"peak {max(peak) / GIB:.1f} GiB")

    def small(self):
        with self.opened("small", SMALL) as bench:
            bench.right("plain", PLAIN)
            bench.right("triton", SOFTMAX_KERNEL)
            evaluation = bench.evaluate(SIDE_STREAM)
            bench.note("side stream", evaluation)
            slow = evaluation.timings and evaluation.timings[0].ratio < 1.2
            assert slow or evaluation.verdict == "forged", "a side stream escapes the clock"
            duel = bench.duel(SOFTMAX_KERNEL)
            bench.said.append(f"duel {duel.challenger.verdict} gain {duel.gain:.2f}")
            assert duel.challenger.correct, duel.challenger.message
        return bench.told()

    def hostile(self):
        with self.opened("hostile", SMALL, baselines=("eager",)) as bench:
            failed = []
            for name, (verdict, source) in HOSTILE.items():
                evaluation = bench.evaluate(source)
                bench.note(name, evaluation)
                if evaluation.verdict != verdict:
                    failed.append(f"{name}: {evaluation.verdict}, not {verdict}")
            bench.right("plain after all that", PLAIN)
            assert not failed, f"{failed}\n{bench.told()}"
        return bench.told()

    def in_place(self):
        with self.opened("in_place", IN_PLACE, baselines=("eager",)) as bench:
            bench.right("plain", PLAIN)
            evaluation = bench.evaluate(
                "class ModelNew(Model):\n    def forward(self, x, residual):\n"
                "        return super().forward(x, residual.clone())\n"
            )
            bench.note("not in place", evaluation)
            assert evaluation.verdict == "wrong result", evaluation
        return bench.told()

    def tf32(self):
        with self.opened("strict", GEMM, baselines=("eager",)) as bench:
            bench.right("plain", PLAIN)
            evaluation = bench.evaluate("torch.backends.cuda.matmul.allow_tf32 = True\n" + PLAIN)
            bench.note("TF32 by flag", evaluation)
            assert evaluation.verdict == "wrong result", evaluation.verdict
            strict = bench.told()
        with self.opened("tf32", GEMM, baselines=("eager",), precision="tf32") as bench:
            bench.right("plain", PLAIN)
        return f"{strict}\n   tf32: {bench.told()}"

    def softmax(self):
        return self._large("softmax", BIG_SOFTMAX)

    def rmsnorm(self):
        return self._large("rmsnorm", BIG_RMSNORM)

    def _large(self, name, text):
        with self.opened(name, text, baselines=("eager",)) as bench:
            bench.right("plain", PLAIN)
        return bench.told()

    def too_big(self):
        path = self.folder / "too_big.py"
        path.write_text(HEAD + TOO_BIG)
        try:
            open_evaluator(
                path,
                settings=EvaluatorSettings(),
                memo_directory=self.folder / "memo_big",
                work_directory=self.folder / "work_big",
                device="cuda",
            )
        except Exception as error:
            assert "GiB" in str(error), error
            return str(error)
        raise AssertionError("a problem of 60 GiB was opened")

    def nothing_left(self):
        time.sleep(1)
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        left = subprocess.run(
            ["pgrep", "-f", "kerntree.evaluator"], capture_output=True, text=True, check=False
        ).stdout.split()
        assert not left, f"processes {left}"
        return f"{(total - free) / GIB:.1f} GiB in use"


class Opened:
    """An open evaluator and what was seen of it."""

    def __init__(self, problem, evaluator, model, said):
        self.problem, self.evaluator, self.model, self.said = problem, evaluator, model, said

    def request(self, source):
        candidate = Candidate(source=self.model + source, language="triton")
        return EvaluationRequest(problem=self.problem, candidate=candidate, config={})

    def evaluate(self, source):
        return self.evaluator.evaluate(self.request(source))

    def duel(self, source):
        return self.evaluator.duel(self.request(source), None)

    def right(self, name, source):
        evaluation = self.evaluate(source)
        self.note(name, evaluation)
        if not evaluation.correct:
            detail = str(evaluation.evidence.get("detail", evaluation.evidence))[-1500:]
            raise AssertionError(f"{self.told()}\n{detail}")

    def note(self, name, evaluation):
        text = f"{name}: {evaluation.verdict}"
        for timing in evaluation.timings:
            text += (
                f" {timing.median_ns / 1e6:.4f} ms, baseline {timing.baseline_median_ns / 1e6:.4f},"
                f" ratio {timing.ratio:.3f} ({timing.ratio_low:.3f} to {timing.ratio_high:.3f}),"
                f" floor {(timing.floor_ns or 0) / 1e6:.4f},"
                f" {len(timing.candidate_ns)} samples"
            )
        text += f" [{evaluation.environment.get('isolation')}] {evaluation.seconds}"
        if evaluation.message:
            text += f" | {evaluation.stage}: {evaluation.message[:400]}"
        for error in evaluation.errors[:1]:
            text += (
                f" | rms {error.relative_rms:.2g} (torch {error.relative_rms_torch:.2g}, limit"
                f" {error.relative_rms_limit:.2g}) worst {error.worst:.2g}"
            )
        self.said.append(text)

    def told(self):
        return "\n     ".join(self.said)


def _refused(lending, handle, layout):
    try:
        with lending.opened(handle, layout):
            return ""
    except BlockRefused as error:
        return str(error)


@contextlib.contextmanager
def _sampled():
    """Bytes in use on the device, looked at every 10 ms."""
    seen, done = [0], threading.Event()

    def look():
        while not done.wait(0.01):
            free, total = torch.cuda.mem_get_info()
            seen.append(total - free)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        done.set()
        thread.join()


STEPS = (
    "facts", "blocks", "between_processes", "child", "small", "hostile", "in_place", "tf32",
    "softmax", "rmsnorm", "too_big", "nothing_left",
)  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--seconds", type=float, default=170.0)
    options = parser.parse_args()
    begin, bad = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="kerntree-smoke-") as folder:
        smoke = Smoke(folder)
        for name in options.steps or STEPS:
            start = time.monotonic()
            if start - begin > options.seconds:
                print(f"SKIP {name}: {start - begin:.0f} s are gone", flush=True)
                bad += 1
                continue
            try:
                said = getattr(smoke, name)()
                print(f"PASS {name} {time.monotonic() - start:.2f} s\n     {said}", flush=True)
            except BaseException as error:
                bad += 1
                trace = "".join(traceback.format_exception(error))[-3000:]
                print(f"FAIL {name} {time.monotonic() - start:.2f} s\n{trace}", flush=True)
                if isinstance(error, KeyboardInterrupt):
                    raise
    print(f"{time.monotonic() - begin:.0f} s, {bad} steps not passed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
