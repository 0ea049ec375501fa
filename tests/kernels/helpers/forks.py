"""Programs of this folder in forks of a process that has imported torch and what its gradients need.

Standard input is a line of JSON for each: the program and its arguments, its environment, and the files of
its standard input, output and errors. Standard output is a line with its exit status. With a program as
argument that one alone is run, and loaded once. With TRITON_INTERPRET=1 in its environment Triton
interprets the kernels of all of them.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import traceback

import torch
import torch.distributed.tensor  # which autograd's functions look at

from kernel_selector.kernels import gate, registry  # noqa: F401

torch.ones(1, requires_grad=True).mul(2).backward(torch.ones(1))  # imports SymPy: half a second in each fork
if os.environ.get("TRITON_INTERPRET") == "1":  # else those that compile run too seldom for it
    import pytest  # noqa: F401
    import triton.runtime.interpreter  # noqa: F401

    for operator in registry.operators():
        registry.implementations(operator)  # hashes each
else:
    assert "triton" not in sys.modules, "whether kernels are interpreted is decided where they are imported"


def run(request, loaded) -> int:
    """The exit status of a program, in the process that runs it; of one that is loaded, by its `main`."""
    os.environ.update(request["environment"])
    sys.argv = request["arguments"]
    for place, name in (("stdin", "input"), ("stdout", "output"), ("stderr", "errors")):
        mode = os.O_RDONLY if place == "stdin" else os.O_WRONLY | os.O_CREAT
        os.dup2(os.open(request[name], mode), getattr(sys, place).fileno())
    sys.stdin = open(0)  # noqa: SIM115 - the other's buffer holds requests
    try:
        if loaded:
            loaded["main"]()
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(*program: str) -> None:
    loaded = runpy.run_path(*program, run_name="loaded") if program else None
    if loaded:
        loaded["prepare"]()
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            status = run(json.loads(line), loaded)
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
