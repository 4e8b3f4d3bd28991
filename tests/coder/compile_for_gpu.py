"""Compiles printed Triton kernels for a GPU that is not here; run by test_compile_triton.py.

Prints a line of JSON a kernel: registers, bytes of spills, whether loads are wide, and how often
it loads and stores how many bytes at once. Runs in a process of its own, since Triton's interpreter
and its compiler do not get along in one.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from kerntree.coder.emit import emit_module

TYPES = {
    torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.float16: "*fp16",
    torch.float64: "*fp64", torch.int64: "*i64", torch.int32: "*i32", torch.int16: "*i16",
    torch.int8: "*i8", torch.uint8: "*u8", torch.bool: "*i1",
}  # fmt: skip
SIZES = ("rows", "tiles")
found = []


def usage(cubin):
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        text = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    return {name.lower(): int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", text)}


def compiled(self, *args, grid, warmup, **options):
    """Stands in for a launch."""
    named = {**dict(zip(self.arg_names, args, strict=False)), **options}
    signature, constants = {}, {}
    for name in self.arg_names:
        value = named[name]
        if isinstance(value, torch.Tensor):
            signature[name] = TYPES[value.dtype]
        elif name.islower():
            signature[name] = "i32"
        else:
            signature[name], constants[name] = "constexpr", value
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, name in enumerate(self.arg_names)
        if signature[name] != "constexpr" and name not in SIZES
    }
    kernel = triton.compile(
        ASTSource(self, signature, constants, aligned),
        target=GPUTarget("cuda", 90, 32),
        options={"num_warps": options["num_warps"]},
    )
    wide = "v4" in kernel.asm["ptx"]
    found.append(
        {
            "kernel": self.fn.__name__,
            **usage(kernel.asm["cubin"]),
            "wide": wide,
            "loads": widths(kernel.asm["ptx"], "ld"),
            "stores": widths(kernel.asm["ptx"], "st"),
        }
    )


def widths(ptx, operation):
    """How many instructions move how many bytes a thread between registers and global memory."""
    counts = {}
    for modifiers in re.findall(rf"\b{operation}\.global((?:\.\w+(?:::\w+)*)+)", ptx):
        vector = int((re.findall(r"\.v(\d)", modifiers) or [1])[0])
        size = vector * int(re.findall(r"\.[bsuf](\d+)", modifiers)[-1]) // 8
        counts[size] = counts.get(size, 0) + 1
    return counts


def rotary(q, cos, sin):
    first, second = q.chunk(2, -1)
    q.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), -1))
    return q


def rotary_in_float(x, cos, sin):
    wide = x.float()
    first, second = wide.chunk(2, -1)
    x.copy_(wide * cos + torch.cat((-second, first), -1) * sin)
    return x


def swiglu(x):
    gate, up = x.chunk(2, -1)
    return torch.nn.functional.silu(gate) * up


def rmsnorm(x, residual, weight):
    residual += x
    wide = residual.float()
    x.copy_(wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6) * weight)
    return x, residual


def masked_softmax(scores, mask):
    return torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)


def half(*shape):
    return torch.randn(shape).bfloat16()


def pieces():
    """Operators of parts of tensors in bfloat16: their cases' names begin with "bf16"."""
    return [
        ("bf16 rotary", rotary, [half(64, 8, 128), half(64, 1, 64), half(64, 1, 64)]),
        ("bf16 rotary of 80", rotary, [half(64, 8, 80), half(64, 1, 40), half(64, 1, 40)]),
        ("bf16 rotary, any rows", rotary, [half(64, 8, 128), half(64, 1, 64), half(64, 1, 64)],
         [half(90, 8, 128), half(90, 1, 64), half(90, 1, 64)]),
        ("bf16 rotary in float", rotary_in_float,
         [half(64, 8, 128), torch.randn(64, 1, 128), torch.randn(64, 1, 128)]),
        ("bf16 SwiGLU", swiglu, [half(64, 2 * 11008)]),
        ("bf16 SwiGLU, any rows", swiglu, [half(64, 2 * 11008)], [half(16, 2 * 11008)]),
        ("bf16 RMSNorm", rmsnorm, [half(64, 4096), half(64, 4096), half(4096)]),
        ("bf16 RMSNorm, any rows", rmsnorm, [half(64, 4096), half(64, 4096), half(4096)],
         [half(16, 4096), half(16, 4096), half(4096)]),
        ("bf16 softmax", masked_softmax, [half(2, 4, 64, 1024), torch.rand(2, 1, 64, 1024) > 0.5]),
        ("bf16 LayerNorm", lambda x, w, b: torch.nn.functional.layer_norm(x, (4096,), w, b),
         [half(64, 4096), half(4096), half(4096)]),
    ]  # fmt: skip


def whole_numbers():
    """Every function of whole numbers, of a type without sign and of one with it."""
    import test_emit_numbers as numbers

    return [
        (f"{dtype} {function.__name__}", function,
         [numbers.hard_whole_numbers(dtype, (4, 70), seed) for seed in (1, 2)])
        for dtype in (torch.uint8, torch.int32) for function in numbers.WHOLE_NUMBERS
    ]  # fmt: skip


def main():
    sys.path.insert(0, str(Path(__file__).parent))
    sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
    import printing

    printing.INTERPRETED = False
    JITFunction.run = compiled
    functional = torch.nn.functional
    cases = [
        ("softmax", lambda x: torch.softmax(x, -1), [torch.randn(64, 4096)]),
        ("columns", lambda x: x / torch.sqrt((x**2).mean(1, keepdim=True) + 1e-5),
         [torch.randn(2, 64, 1024)]),
        ("gelu", functional.gelu, [torch.randn(1 << 16)]),
        ("half", lambda x: torch.log_softmax(x, -1), [torch.randn(64, 1024).bfloat16()]),
        ("loss", functional.cross_entropy, [torch.randn(64, 1000), torch.randint(0, 1000, (64,))]),
        ("any rows", lambda x: torch.softmax(x, -1),
         [torch.randn(64, 4096)], [torch.randn(1000, 4096)]),
        *pieces(),
        *whole_numbers(),
    ]  # fmt: skip
    wanted = json.loads(sys.argv[1])
    few = {"bf16": ["fast", "one pass"], "torc": ["fast"]}
    for name, function, inputs, *others in cases:
        for how in [h for h in wanted if h in few.get(name[:4], wanted)]:
            problems = [
                printing.problem_of(printing.Lambda(function), i) for i in (inputs, *others)
            ]
            given = [
                p.cases[0].model_copy(update={"name": f"c{k}"}) for k, p in enumerate(problems)
            ]
            problem = problems[0].model_copy(update={"cases": tuple(given)})
            schedule = printing.SCHEDULES["triton"][how]
            candidate = emit_module(problem, printing.fused(problem, schedule, "triton"))
            found.clear()
            printing.load(candidate).ModelNew()(*inputs)
            for entry in found:
                print(json.dumps({"case": name, "schedule": how, **entry}))


if __name__ == "__main__":
    assert os.environ.get("TRITON_INTERPRET") != "1"
    main()
