"""The winning kernel as a file that stands alone and checks itself."""

import ast
import math
import textwrap
from collections.abc import Sequence

from kerntree.cache.errors import KerntreeError
from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.evaluation import Evaluation


def stand_alone(
    candidate: Candidate,
    config: Config,
    evaluation: Evaluation,
    *,
    problem: str,
    plan: Sequence[str],
) -> str:
    """The module with its config frozen, a header of facts, and a self-check under `__main__`."""
    header = "\n".join(f"# {line}".rstrip() for line in _facts(evaluation, problem, plan, config))
    source = _with_config(candidate.source, {**candidate.config, **config})
    if candidate.program is not None:
        source = _with_default(source)
    future, rest = _split_future(source)
    device = evaluation.environment.get("device")
    kind = str(device.get("kind", "cpu")) if isinstance(device, dict) else "cpu"
    check = _SELF_CHECK.replace("DEVICE", repr(kind), 1)
    if "def get_inputs" not in rest:  # a kernel of the user's, with no problem around it
        check = ""
    return f"{header}\n\n{future}{rest.rstrip()}\n\n\n{check}".rstrip() + "\n"


def _facts(evaluation: Evaluation, problem: str, plan: Sequence[str], config: Config) -> list[str]:
    lines = [f"A kernel for {problem}, found by kerntree.", ""]
    environment = evaluation.environment
    lines += [f"{key}: {_plain(value)}" for key, value in environment.items()]
    for timing in evaluation.timings:
        lines.append(
            f"case {timing.case}: {timing.median_ns / 1e6:.3f} ms "
            f"[{timing.median_low_ns / 1e6:.3f}, {timing.median_high_ns / 1e6:.3f}], "
            f"{timing.ratio:.3f} times as fast as {timing.baseline} "
            f"[{timing.ratio_low:.3f}, {timing.ratio_high:.3f}]"
        )
    if evaluation.errors:
        worst = max(evaluation.errors, key=lambda e: e.relative_rms)
        lines.append(
            f"largest relative RMS error to float64: {worst.relative_rms:.2e} "
            f"(PyTorch's own on the same inputs: {worst.relative_rms_torch:.2e})"
        )
    lines.append(f"config: {config}")
    lines.append("plan: " + (" > ".join(plan) or "the plain operator"))
    lines += ["", "Run this file to check it against the reference and time both."]
    return [part for line in lines for part in (textwrap.wrap(line, 96) or [""])]


def _plain(value: object) -> str:
    return " ".join(str(value).split())


def _with_config(source: str, config: Config) -> str:
    """The source with its `CONFIG = {…}` replaced; raises `KerntreeError` if it has none to set."""
    if not config:
        return source
    for statement in ast.parse(source).body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and statement.targets[0].id == "CONFIG"
        ):
            lines = source.splitlines()
            lines[statement.lineno - 1 : statement.end_lineno] = [f"CONFIG = {config!r}"]
            return "\n".join(lines) + "\n"
    raise KerntreeError("the module has no CONFIG at its top level to freeze")


def _with_default(source: str) -> str:
    """The source with the reference in place of the error for forms that were not searched for."""
    for statement in ast.walk(ast.parse(source)):
        if not isinstance(statement, ast.ClassDef) or statement.name != "ModelNew":
            continue
        for method in statement.body:
            if not isinstance(method, ast.FunctionDef) or method.name != "forward":
                continue
            last = method.body[-1]
            names = [argument.arg for argument in method.args.args[1:]]
            if not isinstance(last, ast.Raise) or method.args.vararg or not names:
                continue
            lines = source.splitlines()
            lines[last.lineno - 1 : last.end_lineno] = [
                "        # a form that was not searched for: the reference",
                f"        return super().forward({', '.join(names)})",
            ]
            return "\n".join(lines) + "\n"
    return source


def _split_future(source: str) -> tuple[str, str]:
    lines = source.splitlines(keepends=True)
    future = [line for line in lines if line.startswith("from __future__")]
    rest = [line for line in lines if not line.startswith("from __future__")]
    return ("".join(future) + "\n" if future else ""), "".join(rest).lstrip("\n")


def speedup(evaluation: Evaluation) -> float | None:
    """How many times as fast as the baseline, over all cases by weight."""
    return None if evaluation.reward is None else math.pow(2.0, evaluation.reward)


_SELF_CHECK = '''def _self_check(repeats=10, device=DEVICE):
    """Compares with the reference on fresh inputs, then times both in turn."""
    import copy
    import statistics
    import sys
    import time

    def flat(value):
        if isinstance(value, torch.Tensor):
            return [value]
        if isinstance(value, dict):
            value = list(value.values())
        if isinstance(value, (list, tuple)):
            return [leaf for item in value for leaf in flat(item)]
        return []

    def finished():
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()

    times = {"reference": [], "kernel": []}
    worst, wrong = 0.0, False
    with torch.no_grad(), torch.device(device):
        init = get_init_inputs() if "get_init_inputs" in globals() else []
        torch.manual_seed(0)
        reference = Model(*copy.deepcopy(init)).to(device)
        torch.manual_seed(0)
        kernel = ModelNew(*copy.deepcopy(init)).to(device)
        kernel.load_state_dict(reference.state_dict())
        for repeat in range(repeats + 1):
            given = get_inputs()
            results = {}
            for name, module in (("reference", reference), ("kernel", kernel)):
                inputs = [x.to(device) if isinstance(x, torch.Tensor) else x
                          for x in copy.deepcopy(given)]
                start = finished()
                output = module(*inputs)
                if repeat:  # the first call compiles
                    times[name].append(finished() - start)
                results[name] = flat(output) + flat(inputs)
                del output, inputs
            for expected, got in zip(results["reference"], results["kernel"]):
                close = 1e-2 if expected.dtype in (torch.float16, torch.bfloat16) else 1e-4
                same = expected.shape == got.shape and torch.allclose(
                    expected.double(), got.double(), rtol=close, atol=close, equal_nan=True
                )
                wrong = wrong or not same
                if expected.shape == got.shape and expected.numel():
                    difference = (expected.double() - got.double()).abs().nan_to_num()
                    worst = max(worst, difference.max().item())
    medians = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    print(f"largest difference to the reference: {worst:.3g}", "WRONG" if wrong else "(right)")
    print(f"reference {medians['reference']:.3f} ms, kernel {medians['kernel']:.3f} ms: "
          f"{medians['reference'] / medians['kernel']:.2f} times as fast")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    _self_check()
'''
