"""Searches five bfloat16 problems of several sizes on a GPU, and states the ratios case by case.

    python benchmarks/gpu_bf16_set.py --time 5m

How it measures stands in gpu_search.py; torch.compile is compiled anew for the sizes of each case.
In the geometric means each problem counts alike, and so does each case of a problem. Writes
benchmarks/results/gpu_bf16_set.json.
"""

from gpu_search import run_set

PROBLEMS = ("residual_rmsnorm", "swiglu", "rotary", "masked_softmax", "layernorm_rows")


def record(name, timed):
    """The entry of a problem: its cases by name."""
    return timed


if __name__ == "__main__":
    run_set(__file__, __doc__.splitlines()[0], PROBLEMS, seconds="5m", record=record)
