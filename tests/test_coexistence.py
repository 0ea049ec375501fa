"""Beside Hugging Face's package `kernels`: theirs keeps its name, ours never asks for it.

Here with a stand-in for their distribution; scripts/check-coexistence installs the real one.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import module_name, python_files

ROOT = Path(__file__).parents[1]
OURS = (
    "import selector; assert selector.choose(hidden=8, batch=2, seq=3, override='torch_lstm').implementation"
)
THEIRS = (
    "import kernels, importlib.metadata; assert kernels.get_kernel() == 'theirs', kernels.__file__; "
    "assert importlib.metadata.version('kernels') == '0.18.2'"
)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder as site-packages with their distribution, and ours by links."""
    folder = tmp_path / "site"
    for package in ("kernels", "kernels-0.18.2.dist-info"):
        (folder / package).mkdir(parents=True)
    (folder / "kernels/__init__.py").write_text("def get_kernel(): return 'theirs'\n")
    (folder / "kernels-0.18.2.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    )
    for package in ("selector", "kernel_selector"):
        (folder / package).symlink_to(ROOT / package)
    return folder


def python(code: str, *, site: Path) -> subprocess.CompletedProcess[str]:
    """Run code with this site folder first, away from the checkout."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, cwd=site.parent, env=environment, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("order", [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours first", "theirs first"])
def test_both_import_in_either_order(order: tuple[str, str], site: Path) -> None:
    done = python("\n".join(order), site=site)
    assert done.returncode == 0, done.stderr


def test_no_module_of_ours_imports_theirs(site: Path) -> None:
    (site / "kernels/__init__.py").write_text("raise RuntimeError('imported by us')\n")
    files = [path for path, _ in python_files(ROOT, "kernels", "db", "selector", "service")]
    modules = [module_name(ROOT, path) for path in files if path.name != "__main__.py"]
    code = f"import importlib, sys\nfor name in {modules}: importlib.import_module(name)"
    done = python(code, site=site)
    assert done.returncode == 0, done.stderr


def test_the_installed_form_exposes_two_names_only() -> None:
    try:
        distribution = importlib.metadata.distribution("kernel-selector")
    except importlib.metadata.PackageNotFoundError:
        pytest.fail("kernel-selector is not installed in this environment: run scripts/setup dev")
    assert distribution.metadata["Name"] == "kernel-selector"
    code = "import importlib.util as u; print([n for n in ('kernels', 'db', 'service') if u.find_spec(n)])"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
