"""Benchmarks that need no GPU, each run to its end with few questions, problems or records."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# nothing is written over what was measured
RUN = """
import importlib, sys
module = importlib.import_module(sys.argv.pop(1))
module.write_result = lambda name, *_, **__: print("wrote", name)
module.main()
"""


@pytest.mark.full
@pytest.mark.parametrize(
    "command",
    [
        "kernels.host_time --smoke --only gelu",
        "models.compile_time --smoke",
        "selection.batch_latency --operators lstm --batches 1",
        "selection.choose_latency --questions 10",
        "service.extender_latency --pods 3",
        "service.insert_records --records 1000",
        "service.poisoned",
        "service.queue_faults --tasks 20 --outages 1",
        "service.rest_latency --requests 10",
        "service.service_start --records 1000",
    ],
)
def test_it_ends_with_its_figures(command, tmp_path, monkeypatch):
    """One asked for answers of a kind that none had any more, and ended in an error of statistics."""
    monkeypatch.delenv("SELECTOR_DATABASE_URL")  # of a file that is not there
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    run = subprocess.run(
        [sys.executable, "-c", RUN, *f"benchmarks.{command}".split()],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    assert "\nwrote " in run.stdout
