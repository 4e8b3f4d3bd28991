"""Problems and candidates of gpu_smoke.py, as text."""

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"
TRITON = "import triton\nimport triton.language as tl\n"

SMALL = """
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))

    def forward(self, x):
        return torch.softmax(x * self.weight, dim=-1)

def get_inputs():
    return [torch.randn(4096, 2048)]

def get_init_inputs():
    return [2048]
"""
SOFTMAX_KERNEL = """
@triton.jit
def kernel(x, w, y, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    mask = at < n
    v = tl.load(x + row * n + at, mask=mask, other=float("-inf"))
    v = v * tl.load(w + at, mask=mask, other=1.0)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + row * n + at, e / tl.sum(e, 0), mask=mask)

class ModelNew(Model):
    def forward(self, x):
        x = x.contiguous()
        y = torch.empty_like(x)
        kernel[(x.shape[0],)](x, self.weight, y, x.shape[1], BLOCK=2048)
        return y
"""
IN_PLACE = """
class Model(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n, dtype=torch.bfloat16))
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x, residual):
        residual.add_(x)
        self.seen.add_(1)
        h = residual.float()
        h = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return h.to(torch.bfloat16) * self.weight

def get_inputs():
    return [torch.randn(2048, 4096).bfloat16(), torch.randn(2048, 4096).bfloat16()]

def get_init_inputs():
    return [4096]
"""
GEMM = """
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2048, 2048)

    def forward(self, x):
        return F.gelu(self.linear(x))

def get_inputs():
    return [torch.rand(2048, 2048)]
"""
BIG_SOFTMAX = """
class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)

def get_inputs():
    return [torch.rand(4096, 393216)]
"""
BIG_RMSNORM = """
class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.features, self.eps = features, 1e-5

    def forward(self, x):
        return x / torch.sqrt(torch.mean(x ** 2, dim=1, keepdim=True) + self.eps)

def get_inputs():
    return [torch.rand(112, 64, 512, 512)]

def get_init_inputs():
    return [64]
"""
TOO_BIG = BIG_SOFTMAX.replace("4096, 393216", "40960, 393216")

PLAIN = "class ModelNew(Model):\n    pass\n"
HOSTILE = {
    "illegal address": (
        "crashed",
        """
@triton.jit
def kernel(p):
    at = tl.arange(0, 128).to(tl.int64) + 68719476736
    tl.store(p + at, 1.0)

class ModelNew(Model):
    def forward(self, x):
        kernel[(1,)](x)
        return torch.softmax(x * self.weight, dim=-1)
""",
    ),
    "launch failure": (
        "raised",
        """
@triton.jit
def kernel(p):
    tl.store(p, 1.0)

class ModelNew(Model):
    def forward(self, x):
        kernel[(1, 1, 70000)](torch.empty_like(x))
        return torch.softmax(x * self.weight, dim=-1)
""",
    ),
    "compile failure": (
        "build failed",
        """
@triton.jit
def kernel(p):
    tl.store(p, tl.no_such_function(1.0))

class ModelNew(Model):
    def forward(self, x):
        kernel[(1,)](torch.empty_like(x))
        return torch.softmax(x * self.weight, dim=-1)
""",
    ),
    "out of memory": (
        "out of memory",
        """
class ModelNew(Model):
    def forward(self, x):
        torch.empty(1 << 38, dtype=torch.float32, device=x.device)
        return torch.softmax(x * self.weight, dim=-1)
""",
    ),
    "hang": (
        "timed out",
        """
@triton.jit
def kernel(p):
    v = tl.load(p, volatile=True)
    while v == 0:
        v = tl.load(p, volatile=True)

class ModelNew(Model):
    def forward(self, x):
        kernel[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
        return torch.softmax(x * self.weight, dim=-1)
""",
    ),
    "wrong": ("wrong result", "class ModelNew(Model):\n    def forward(self, x):\n"
              "        return torch.softmax(x * self.weight, dim=-1) * 1.001\n"),
    "nothing written": ("wrong result", "class ModelNew(Model):\n    def forward(self, x):\n"
                        "        return torch.full_like(x, float('nan'))\n"),
    "output on the CPU": ("wrong form", "class ModelNew(Model):\n    def forward(self, x):\n"
                          "        return torch.softmax(x * self.weight, dim=-1).cpu()\n"),
    "input ruined": ("wrong mutation", "class ModelNew(Model):\n    def forward(self, x):\n"
                     "        y = torch.softmax(x * self.weight, dim=-1)\n"
                     "        x.zero_()\n        return y\n"),
    "half operands": ("wrong result", "class ModelNew(Model):\n    def forward(self, x):\n"
                      "        return torch.softmax(x.half() * self.weight.half(), -1).float()\n"),
}  # fmt: skip
SIDE_STREAM = """
class ModelNew(Model):
    def forward(self, x):
        if not hasattr(self, "side"):
            self.side = torch.cuda.Stream()
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            return torch.softmax(x * self.weight, dim=-1)
"""
LENDER = """
import sys, torch
from kerntree.evaluator.device_block import CudaLending
from kerntree.evaluator.tensor_block import layout_of, spec_of
torch.zeros(1, device="cuda")
layout = layout_of([spec_of(torch.empty(1000, 7)), spec_of(torch.empty(3, dtype=torch.bfloat16))])
lent = CudaLending().lend(layout, poison=True)
print(lent.handle, flush=True)
sys.stdin.readline()
print(float(lent.tensors[0].sum()), float(lent.tensors[1].float().sum()), flush=True)
"""
