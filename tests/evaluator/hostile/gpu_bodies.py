"""Candidates that misbehave on a GPU, and honest twins; each is what follows the reference.

The reference is `torch.softmax(x * self.weight, dim=-1)`. Those under `HOSTILE` come with the
verdicts that are right for them; `SLOW` ones may pass, but not with less than their milliseconds.
"""

MODEL = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return torch.softmax(x * self.weight, dim=-1)
"""
PROBLEM = f"""{MODEL}
def get_inputs():
    return [torch.randn(2048, 2048)]

def get_init_inputs():
    return [2048]
"""
IMPORTS = """
import os, signal, threading, time
import triton
import triton.language as tl
"""
HEAD = """
class ModelNew(Model):
    calls = 0

    def forward(self, x):
        self.calls += 1
"""
PLAIN = "        return torch.softmax(x * self.weight, dim=-1)\n"


def forward(*lines, before="", result=PLAIN):
    """A candidate whose forward runs those lines, then returns the right result."""
    body = "".join(f"        {line}\n" for line in lines)
    return f"{before}{HEAD}{body}{result}"


_OUT_OF_BOUNDS = """
@triton.jit
def kernel(p):
    at = tl.arange(0, 128).to(tl.int64) + 68719476736
    tl.store(p + at, 1.0)
"""
_ENDLESS = """
@triton.jit
def kernel(p):
    v = tl.load(p, volatile=True)
    while v == 0:
        v = tl.load(p, volatile=True)
"""
_SMALL = """
@triton.jit
def kernel(p):
    tl.store(p, 1.0)
"""
_SPIN = "torch.cuda._sleep(40_000_000)"  # clock cycles: about 20 ms

HOSTILE = {
    "illegal address": ({"crashed"}, forward("kernel[(1,)](x)", before=_OUT_OF_BOUNDS)),
    "illegal address at a later call": (
        {"crashed"},
        forward("if self.calls > 5:", "    kernel[(1,)](x)", before=_OUT_OF_BOUNDS),
    ),
    "device-side assertion": (
        {"crashed"},
        forward("x[torch.full((1,), 1 << 20, device=x.device)]"),
    ),
    "hang": (
        {"timed out"},
        forward(
            "kernel[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))", before=_ENDLESS
        ),
    ),
    "launch failure": (
        {"raised"},
        forward("kernel[(1, 1, 70000)](torch.empty_like(x))", before=_SMALL),
    ),
    "out of memory": ({"out of memory"}, forward("torch.empty(1 << 40, device=x.device)")),
    "memory kept by each call": (
        {"out of memory"},
        forward(
            "kept.append(torch.empty(1 << 33, dtype=torch.uint8, device=x.device))",
            before="kept = []\n",
        ),
    ),
    "exit with a kernel in flight": ({"crashed"}, forward(_SPIN, "os._exit(0)")),
    "killed by itself": ({"crashed"}, forward(_SPIN, "os.kill(os.getpid(), signal.SIGKILL)")),
    "output never written": (
        {"wrong result"},
        forward(result="        return torch.empty_like(x)\n"),
    ),
    "answers by address": (
        {"wrong result", "wrong form"},
        forward(
            "if x.data_ptr() not in seen:",
            "    seen[x.data_ptr()] = torch.softmax(x * self.weight, dim=-1)",
            result="        return seen[x.data_ptr()].clone()\n",
            before="seen = {}\n",
        ),
    ),
    "the first answer for ever": (
        {"wrong result"},
        forward(
            "if not seen:",
            "    seen.append(torch.softmax(x * self.weight, dim=-1))",
            result="        return seen[0].clone()\n",
            before="seen = []\n",
        ),
    ),
    "a graph of the first input": (
        {"wrong result", "crashed", "raised"},
        forward(
            "if self.calls == 1:",
            "    torch.softmax(x * self.weight, dim=-1)",
            "    torch.cuda.synchronize()",
            "    graph = torch.cuda.CUDAGraph()",
            "    with torch.cuda.graph(graph):",
            "        y = torch.softmax(x * self.weight, dim=-1)",
            "    kept.extend((graph, y, x.clone()))",
            "kept[0].replay()",
            result="        return kept[1].clone()\n",
            before="kept = []\n",
        ),
    ),
    "input ruined": (
        {"wrong mutation"},
        forward(
            "y = torch.softmax(x * self.weight, dim=-1)", "x.zero_()", result="        return y\n"
        ),
    ),
    "half operands": (
        {"wrong result"},
        forward(result="        return torch.softmax(x.half() * self.weight.half(), -1).float()\n"),
    ),
    "written by a thread, later": (
        {"wrong result", "forged", "crashed"},
        forward(
            "y = torch.empty_like(x)",
            "def later():",
            "    time.sleep(0.05)",
            "    y.copy_(torch.softmax(x * self.weight, dim=-1))",
            "threading.Thread(target=later).start()",
            result="        return y\n",
        ),
    ),
}

SLOW = {
    "written on a side stream, later": forward(
        "y = torch.empty_like(x)",
        "self.side = torch.cuda.Stream()",
        "self.side.wait_stream(torch.cuda.current_stream())",
        "with torch.cuda.stream(self.side):",
        f"    {_SPIN}",
        "    y.copy_(torch.softmax(x * self.weight, dim=-1))",
        result="        return y\n",
    ),
    "events that say nothing": forward(
        _SPIN, before="torch.cuda.Event.elapsed_time = lambda *of: 1e-3\n"
    ),
    "waiting that does not wait": forward(
        _SPIN, before="torch.cuda.synchronize = torch.cuda.Event.synchronize = lambda *of: None\n"
    ),
    "clocks that stand": forward(
        _SPIN, before="time.perf_counter_ns = time.monotonic_ns = time.perf_counter = lambda: 1\n"
    ),
}

HONEST = {
    "plain": forward(),
    "a side stream that is joined": forward(
        "side, here = torch.cuda.Stream(), torch.cuda.current_stream()",
        "side.wait_stream(here)",
        "with torch.cuda.stream(side):",
        "    y = torch.softmax(x * self.weight, dim=-1)",
        "here.wait_stream(side)",
        "y.record_stream(here)",
        result="        return y\n",
    ),
    "a graph that copies its input": forward(
        "if self.calls == 1:",
        "    mine = x.clone()",
        "    torch.softmax(mine * self.weight, dim=-1)",
        "    torch.cuda.synchronize()",
        "    graph = torch.cuda.CUDAGraph()",
        "    with torch.cuda.graph(graph):",
        "        y = torch.softmax(mine * self.weight, dim=-1)",
        "    kept.extend((graph, y, mine))",
        "kept[2].copy_(x)",
        "kept[0].replay()",
        result="        return kept[1].clone()\n",
        before="kept = []\n",
    ),
    "a workspace that is kept": forward(
        "if self.calls == 1:",
        "    self.space = torch.empty_like(x)",
        "torch.mul(x, self.weight, out=self.space)",
        result="        return torch.softmax(self.space, dim=-1)\n",
    ),
    "a kernel of Triton's": forward(
        "y = torch.empty_like(x)",
        "kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], BLOCK=2048)",
        result="        return y\n",
        before="""
@triton.jit
def kernel(x, w, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < n
    v = tl.load(x + row * n + at, mask=mask, other=float("-inf"))
    v = v * tl.load(w + at, mask=mask, other=1.0)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + at, e / tl.sum(e, 0), mask=mask)
""",
    ),
}
