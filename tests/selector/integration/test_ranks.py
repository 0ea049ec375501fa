"""Training in two processes: DDP and FSDP2 around replaced layers, and replaced layers in them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
EACH = ("ddp", "optimized in ddp", "fsdp2", "fsdp2, refused", "fsdp2, restored")
COMPILED = ("ddp, compiled", "fsdp2, compiled")


@pytest.mark.parametrize("names", [EACH, pytest.param(COMPILED, marks=pytest.mark.full)])
def test_steps_are_those_of_torchs_layers(names: tuple[str, ...], tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, str(Path(__file__).with_name("ranks.py")), "torchs", *names]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert set(found) == {"torchs", *names}
    for name in names:
        assert found[name] == pytest.approx(found["torchs"], rel=1e-4), name
