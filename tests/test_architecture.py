"""The house rules hold here, and each rule finds what it is there to find."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture import FOLDERS, MAX_ENTRIES, MAX_TRACKED_BYTES, MOST_ENTRIES, RULES, tracked_size

ROOT = Path(__file__).parents[1]
LONG_FUNCTION = "def long():\n" + "    print()\n" * 61
LONG_KERNEL = "@triton.jit\ndef kernel(a):\n" + "    a += 1\n" * 121
LONG_COMMAND = "def command(a: Annotated[int, typer.Option()]):\n" + "    print()\n" * 61
MANY = "def many(a, b, c, d, e, f, g, h): ...\n"

PLANTED = [
    ("layers", "service/x.py", "from ..kernels.gate import Gate\n"),
    ("layers", "service/x.py", "from kernel_selector.migrations import env\n"),
    ("layers", "service/x.py", "from kernel_selector.kernels.gate import Gate\n"),
    ("layers", "db/x.py", "import selector\n"),
    ("layers", "db/x.py", "from kernel_selector.kernels import registry\n"),
    ("layers", "db/x.py", "def late():\n    from kernel_selector.kernels import gate\n"),
    ("layers", "kernels/x.py", "from ..db import records\n"),
    ("layers", "selector/x.py", "from kernel_selector.service import app\n"),
    ("layers", "alembic/env.py", "from kernel_selector.kernels.contract import Record\n"),
    ("packages", "selector/cost_model/x.py", "from ..selection import answer\n"),
    ("packages", "selector/cost_model/x.py", "def late():\n    from ..training.fit import flat\n"),
    ("packages", "selector/planning/x.py", "if TYPE_CHECKING:\n    from ..models.layers import Layer\n"),
    ("packages", "selector/text/x.py", "from selector import choose\n"),
    ("packages", "selector/nn/x.py", "from ..api import choose\n"),
    ("packages", "selector/another/x.py", "from ..errors import InvalidRequest\n"),
    ("self_contained_kernels", "kernels/x.py", "import sqlalchemy\n"),
    ("self_contained_kernels", "kernels/operators/lstm/x.py", "def late():\n    import numpy\n"),
    ("self_contained_kernels", "kernels/x.py", "from kernel_selector.kernels import contract\n"),
    ("libraries", "selector/x.py", "import sqlalchemy.orm\n"),
    ("libraries", "service/x.py", "import sqlalchemy\n"),
    ("libraries", "service/x.py", "def late():\n    from sqlalchemy import select\n"),
    ("libraries", "db/x.py", "from sklearn.tree import DecisionTreeRegressor\n"),
    ("bare_names", "selector/x.py", "import kernels.gate\n"),
    ("bare_names", "tests/test_x.py", "from db import records\n"),
    ("operators_apart", "kernels/operators/gru/x.py", "from ..lstm import work\n"),
    ("operators_apart", "kernels/operators/gru/x.py", "from .. import lstm\n"),
    ("operators_apart", "kernels/shared.py", "def late():\n    from .operators.lstm import work\n"),
    ("cycles", "kernels/one.py", "from . import two\n"),
    ("cycles", "kernels/one.py", "def late():\n    from . import two\n"),
    ("cycles", "kernels/one.py", "if TYPE_CHECKING:\n    from .two import Two\n"),
    ("shadowing", "alembic/__init__.py", ""),
    ("shadowing", "tests/kernels/__init__.py", ""),
    ("file_sizes", "selector/x.py", "x = 1\n" * 501),
    ("function_sizes", "selector/x.py", LONG_FUNCTION),
    ("function_sizes", "kernels/x.py", LONG_KERNEL),
    ("function_sizes", "db/x.py", MANY),
    ("function_sizes", "service/x.py", LONG_COMMAND),
    ("public_names", "selector/x.py", '__all__ = ["choose", "Choice"]\n'),
    ("public_names", "selector/x.py", '__all__ = ["choose", "choose"]\n'),
    ("quiet_imports", "kernels/x.py", "import torch\nCOUNT = torch.cuda.device_count()\n"),
    ("quiet_imports", "selector/x.py", "import subprocess\nsubprocess.run(['true'])\n"),
    ("docstrings", "selector/nn/x.py", '"""What modules share."""\n'),
    ("docstrings", "kernels/x.py", 'def refused() -> str | None:\n    """Why it is refused."""\n'),
    ("docstrings", "benchmarks/x.py", '"""How long it takes."""\n'),
    ("docstrings", "service/x.py", 'class Answer:\n    """It is sent."""\n'),
    ("docstrings", "db/x.py", 'def total() -> int:\n    """How many rows there are."""\n'),
    ("docstrings", "selector/exchange/x.py", 'def good() -> str | None:\n    """Whether it is good."""\n'),
    (
        "docstrings",
        "selector/api.py",
        'class A:\n    def names(self) -> list[str]:\n        """Of the layers."""\n',
    ),
]


def tree(root: Path) -> Path:
    """A small tree of our shape that breaks no rule."""
    for folder in (*FOLDERS, "kernels/operators/lstm", "kernels/operators/gru", "tests/kernels"):
        (root / folder).mkdir(parents=True)
    for package in (
        "kernels",
        "kernels/operators",
        "kernels/operators/lstm",
        "kernels/operators/gru",
        "db",
        "selector",
        "service",
    ):
        (root / package / "__init__.py").write_text('"""A package."""\n')
    for operator in ("lstm", "gru"):
        (root / "kernels/operators" / operator / "reference.py").write_text("from . import __doc__\n")
    (root / "kernels/two.py").write_text("def late():\n    from . import one\n")
    (root / "kernels/one.py").write_text("")
    home = root / "kernel_selector"
    home.mkdir()
    (home / "__init__.py").write_text("")
    for link, folder in (
        ("kernels", "kernels"),
        ("db", "db"),
        ("service", "service"),
        ("migrations", "alembic"),
    ):
        (home / link).symlink_to(f"../{folder}")
    return root


@pytest.mark.parametrize("rule", RULES)
def test_rule_holds(rule: str) -> None:
    assert RULES[rule](ROOT) == []


@pytest.mark.parametrize("rule", RULES)
def test_rule_accepts_a_clean_tree(rule: str, tmp_path: Path) -> None:
    assert RULES[rule](tree(tmp_path)) == []


@pytest.mark.parametrize(("rule", "file", "source"), PLANTED)
def test_rule_finds_a_planted_violation(rule: str, file: str, source: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / file).parent.mkdir(exist_ok=True)
    (root / file).write_text(source)
    violations = RULES[rule](root)
    assert violations, f"{rule} overlooks {source!r} in {file}"
    assert file.removesuffix(".py").split("/")[-1] in violations[0]


@pytest.mark.parametrize("source", ["from kernel_selector.db import records\n", "from ..db import records\n"])
@pytest.mark.parametrize("rule", ["layers", "libraries"])
def test_the_service_may_use_the_functions_of_the_database(rule: str, source: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "service/x.py").write_text(source)
    assert RULES[rule](root) == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Modules in the place of torch\'s own."""\n',
        'def fits() -> bool:\n    """Whether it fits."""\n',
        'def _private():\n    """What others share."""\n',
    ],
)
def test_docstrings_may_begin_with_a_noun(source: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    (root / "selector/text").mkdir()
    (root / "selector/text/x.py").write_text(source)
    assert RULES["docstrings"](root) == []


def test_a_crowded_folder_is_found(tmp_path: Path) -> None:
    root = tree(tmp_path)
    for number in range(MAX_ENTRIES["selector"]):  # beside __init__.py
        (root / f"selector/one_{number}.py").write_text("")
    assert RULES["folder_sizes"](root) == ["selector has 15 entries, at most 14"]


@pytest.mark.parametrize("folder", ["db", "kernels", "kernels/operators", "kernels/operators/lstm"])
def test_a_crowded_folder_of_kernels_or_the_database_is_found(folder: str, tmp_path: Path) -> None:
    root = tree(tmp_path)
    for number in range(MOST_ENTRIES - len(list((root / folder).iterdir()))):
        (root / folder / f"one_{number}.py").write_text("")
    assert RULES["folder_sizes"](root) == []
    (root / folder / "one_more.py").write_text("")
    assert RULES["folder_sizes"](root) == [f"{folder} has 26 entries, at most 25"]


def test_every_rule_is_tested_on_a_violation() -> None:
    assert {rule for rule, _, _ in PLANTED} | {"folder_sizes"} == set(RULES)


@pytest.mark.parametrize(
    ("module", "heavy"),
    [("selector", {"torch", "sklearn", "sqlalchemy", "scipy"}), ("selector.training.fit", {"torch"})],
)
def test_importing_is_light(module: str, heavy: set[str]) -> None:
    code = f"import {module}, sys; print(sorted({heavy} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


def test_public_names_of_selector_can_be_imported() -> None:
    import selector

    assert [name for name in selector.__all__ if not hasattr(selector, name)] == []


def test_tracked_files_stay_small_enough_to_travel() -> None:
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in listing.stdout.split("\0") if name]
    sizes = {str(file.relative_to(ROOT)): file.lstat().st_size for file in files if file.exists()}
    assert sizes
    assert tracked_size(sizes) == []


def test_too_large_a_tree_is_told_what_may_leave() -> None:
    assert tracked_size({"small": MAX_TRACKED_BYTES - 1}) == []
    (said,) = tracked_size({"small": 1, "results/large.xz": MAX_TRACKED_BYTES})
    assert "40.0 MiB" in said
    assert "results/large.xz (40.0), small" in said
    assert "scripts/release/ship.py" in said
