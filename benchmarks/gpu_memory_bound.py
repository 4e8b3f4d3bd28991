"""Searches five memory-bound problems on a GPU and states the ratios to both baselines.

    python benchmarks/gpu_memory_bound.py --time 90s

How it measures stands in gpu_search.py. `share_of_fewest_bytes` is the time that the fewest bytes
take at the speed of a device-to-device copy in the same process, over the kernel's time. Writes
benchmarks/results/gpu_memory_bound.json.
"""

from gpu_search import run_set

FEWEST_BYTES = {
    "cross_entropy_rows": 32768 * 4096 * 4 + 32768 * 8,
    "layernorm_images": 2 * 16 * 64 * 256 * 256 * 4 + 2 * 64 * 256 * 256 * 4,
    "softmax_long_rows": 2 * 4096 * 393216 * 4,
    "rmsnorm_channels": 2 * 112 * 64 * 512 * 512 * 4,
    "gelu_large": 2 * 4096 * 393216 * 4,
}


def record(name, timed):
    """The entry of a problem, which has one case."""
    (case,) = timed["cases"].values()
    fewest_ms = FEWEST_BYTES[name] / timed["copy_gb_per_s"] / 1e6
    share = fewest_ms / case["kernel_ms"]
    return {**case, "share_of_fewest_bytes": share, "copy_gb_per_s": timed["copy_gb_per_s"]}


if __name__ == "__main__":
    run_set(__file__, __doc__.splitlines()[0], FEWEST_BYTES, seconds="90s", record=record)
