"""Forwards that misbehave, and honest twins that look alike; each doubles a tensor `x` or should.

Every entry is the body of `ModelNew.forward(self, x)`.
"""

HEADER = """\
import ctypes, os, signal, socket, subprocess, sys, threading, time
import torch


class ModelNew(torch.nn.Module):
    def forward(self, x):
"""

HOSTILE = {
    "infinite loop": ("while True: pass", "ChildTimedOut"),
    "grandchildren that ignore SIGTERM, then a loop": (
        """
for _ in range(3):
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True: time.sleep(60)
while True: time.sleep(60)
""",
        "ChildTimedOut",
    ),
    "segmentation fault": ("ctypes.string_at(0)", "killed by SIGSEGV"),
    "exit with a forged line": (
        """
line = b'{"ok": true, "verdict": "correct"}'
os.write(1, line)
for fd in range(3, 64):
    try: os.write(fd, len(line).to_bytes(4, "big") + line)
    except OSError: pass
os._exit(0)
""",
        "",
    ),
    "a gigabyte of output": (
        "for _ in range(1024): sys.stdout.write('x' * (1 << 20))",
        "ChildFlooded",
    ),
    "writing to the home directory": ("open('/root/kerntree-was-here', 'w')", "forbidden"),
    "writing into torch": ("open(torch.__file__, 'a')", "forbidden"),
    "remounting the root": (
        "ctypes.CDLL(None).mount(None, b'/', None, 32 | 4096, None)\nopen(torch.__file__, 'a')",
        "forbidden",
    ),
    "too much memory": (
        "held = [bytearray(os.urandom(1 << 20) * 32) for _ in range(200)]",
        "ChildOutOfMemory",
    ),
    "too much memory beside threads that come and go": (
        """
def churn():
    while True:
        thread = threading.Thread(target=int)
        thread.start(); thread.join()
for _ in range(4): threading.Thread(target=churn, daemon=True).start()
held = [bytearray(os.urandom(1 << 20) * 32) for _ in range(200)]
time.sleep(60)
""",
        "ChildOutOfMemory",
    ),
    "fork bomb": (
        """
while True:
    try: os.fork()
    except OSError: pass
""",
        "Child",
    ),
    "an input returned": ("return x.mul_(1)", "wrong form"),
    "a view of an input": ("return x.view(-1).view_as(x)", "wrong form"),
    "an input changed": ("y = x * 2\nx.zero_()\nreturn y", "wrong mutation"),
    "a wrong shape": ("return (x * 2)[:1]", "wrong form"),
    "a wrong type": ("return (x * 2).double()", "wrong form"),
    "no tensor": ("return None", "wrong form"),
    "an exception": ("raise KeyError('lost')", "raised"),
    "exit by exception": ("raise SystemExit(0)", "raised"),
}

HONEST = {
    "plain": "return x * 2",
    "its own scratch files": "open('/tmp/note', 'w').write('x')\nreturn x * 2",
    "a compiler": """
open('/tmp/a.c', 'w').write('int main() { return 0; }')
assert subprocess.run(['cc', '/tmp/a.c', '-o', '/tmp/a']).returncode == 0
return x * 2
""",
    "a little printing": "print('hello')\nreturn x * 2",
    "a joined thread": """
done = []
thread = threading.Thread(target=lambda: done.append(x * 2))
thread.start(); thread.join()
return done[0]
""",
    "a fresh contiguous copy": "return (x.clone() * 2).contiguous()",
    "in place on its own copy": "return x.clone().mul_(2)",
}


def module(body: str) -> str:
    """A candidate module with that forward."""
    lines = body.strip("\n").splitlines()
    return HEADER + "\n".join("        " + line for line in lines) + "\n"
