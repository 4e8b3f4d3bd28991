"""Compiles printed Triton kernels for a GPU that is not here; run by test_compile_triton.py.

Prints a line of JSON a kernel: registers, bytes of spills, whether loads are wide. Runs in a
process of its own, since Triton's interpreter and its compiler do not get along in one.
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
    torch.float64: "*fp64", torch.int64: "*i64", torch.int32: "*i32", torch.bool: "*i1",
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
    found.append({"kernel": self.fn.__name__, **usage(kernel.asm["cubin"]), "wide": wide})


def main():
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
    ]  # fmt: skip
    for name, function, inputs, *others in cases:
        for how in json.loads(sys.argv[1]):
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
