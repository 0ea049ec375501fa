"""Versions follow what implementations do: a change of form keeps measurements, another one does not."""

from __future__ import annotations

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kernel_selector.kernels import registry, versions
from kernel_selector.kernels.versions import aliases, canonical, digests

ROOT = Path(registry.ROOT).resolve()
FILES = {
    "planted/__init__.py": "",
    "runtime/autograd.py": (
        '"""Glue."""\n\n\ndef glue(backward):\n    return lambda *given: backward(*given)\n'
    ),
    "planted/_tiles.py": '''"""Tiles."""
from typing import NamedTuple

import triton
import triton.language as tl

WARPS: int = 4
TABLE = {}
TABLE["rows"] = 8


class Tile(NamedTuple):
    """Rows and columns."""

    rows: int
    columns: int = 64


@triton.jit
def kernel(x_ptr, n, BLOCK: tl.constexpr):
    """Doubles."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # of a program
    x = tl.load(x_ptr + place, mask=place < n)
    tl.store(x_ptr + place, 2 * x, mask=place < n)


def refused(size: int) -> str | None:
    """Why a size is refused."""
    if size > 1024:
        return f"takes {size} rows, and at most 1024"
    return None
''',
    "planted/source.cu": """// doubles
extern "C" __global__ void twice(float* x, int n) {  /* all
    of them */
    int i = blockIdx.x * 4 + threadIdx.x;
    if (i < n) x[i] = 2.0f * x[i];
}
""",
    "planted/one.py": '''"""An implementation."""
import torch
from torch import nn

from ..runtime.autograd import glue
from ._tiles import TABLE, WARPS, Tile, kernel, refused

SOURCE = "source.cu"
TEXT = """
__device__ float twice(float x) {
    return 2.0f * x;  // twice
}
"""


def unsupported(problem, device):
    return "is never refused" if problem is None else None


class Module(nn.Module):
    """A module."""

    def extra_repr(self) -> str:
        return "a module"

    @glue
    def forward(self, x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        """x times two."""
        if refused(x.numel()):
            raise ValueError(f"{x.numel()} rows are too many")
        assert x.numel(), "empty"
        tile = Tile(TABLE["rows"])
        rows = [one for one in range(4) if one]
        try:
            kernel[(len(rows),)](x, x.numel(), BLOCK=tile.columns, num_warps=WARPS)
        except RuntimeError as error:
            raise ValueError("no launch") from error
        return torch.mul(x, scale)


def build(problem):
    return Module(), SOURCE, TEXT


def unused():
    return 1
''',
}
SAME = {
    "a comment": ("planted/one.py", "SOURCE =", "# where it is\nSOURCE ="),
    "a docstring": ("planted/_tiles.py", '"""Doubles."""', '"""Doubles each element."""'),
    "no docstring": ("planted/one.py", '    """A module."""\n', ""),
    "an annotation": ("planted/one.py", "x: torch.Tensor, scale: float", "x, scale: int"),
    "an annotation of a constant": ("planted/_tiles.py", "WARPS: int = 4", "WARPS = 4"),
    "a local name": ("planted/_tiles.py", "place", "offset"),
    "a comprehension's": ("planted/one.py", "one for one in range(4) if one", "a for a in range(4) if a"),
    "the name of what is caught": ("planted/one.py", "error", "cause"),
    "a definition's name": ("planted/_tiles.py", "WARPS", "NUMBER_OF_WARPS"),
    "a refusal": ("planted/_tiles.py", "and at most 1024", "expected no more than 1024"),
    "a refusal of a problem": ("planted/one.py", "is never refused", "is refused"),
    "an error's text": ("planted/one.py", "rows are too many", "rows: too many"),
    "an assertion's text": ("planted/one.py", '"empty"', '"no rows"'),
    "what describes": ("planted/one.py", '"a module"', '"the module"'),
    "an import's form": ("planted/one.py", "from torch import nn", "import torch.nn as nn"),
    "what is not reached": ("planted/one.py", "    return 1\n", "    return 2\n"),
    "CUDA's comments": ("planted/source.cu", "// doubles", "// twice as much"),
    "CUDA's space": ("planted/source.cu", "int i = blockIdx.x * 4", "int i =\n        blockIdx.x*4"),
    "comments of CUDA in a string": ("planted/one.py", "// twice", "// two times"),
}  # fmt: skip
OTHER = {
    "a constant": ("planted/_tiles.py", "WARPS: int = 4", "WARPS: int = 8"),
    "a table's value": ("planted/_tiles.py", 'TABLE["rows"] = 8', 'TABLE["rows"] = 16'),
    "a launch shape": ("planted/_tiles.py", "columns: int = 64", "columns: int = 128"),
    "fields in another order": ("planted/_tiles.py", "    rows: int\n", "    kind: int\n    rows: int\n"),
    "a kernel's body": ("planted/_tiles.py", "2 * x", "3 * x"),
    "what a kernel is specialised on": ("planted/_tiles.py", "BLOCK: tl.constexpr", "BLOCK"),
    "a default argument": ("planted/one.py", "scale: float = 2.0", "scale: float = 3.0"),
    "the type of a number": ("planted/one.py", "scale: float = 2.0", "scale: float = 2"),
    "a bound that refuses": ("planted/_tiles.py", "size > 1024", "size > 2048"),
    "CUDA's code": ("planted/source.cu", "2.0f * x[i]", "3.0f * x[i]"),
    "CUDA's operators": ("planted/source.cu", "i < n", "i <= n"),
    "CUDA's names": ("planted/source.cu", "int i = ", "inti = "),
    "CUDA in a string": ("planted/one.py", "return 2.0f * x", "return 3.0f * x"),
    "torch's operation": ("planted/one.py", "torch.mul(x, scale)", "torch.add(x, scale)"),
    "locals that change places": ("planted/one.py", "(x, x.numel(), BLOCK", "(x, len(rows), BLOCK"),
}


def planted(folder, file="", before="", after=""):
    """The version of an implementation planted in a folder, with one text of one file replaced."""
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if name == file:
            assert before in text
            text = text.replace(before, after)
        path.write_text(text)
    return versions.Versions(folder).of(folder / "planted" / "one.py").split(".")


@pytest.mark.parametrize("case", SAME)
def test_what_changes_no_behaviour_changes_no_version(tmp_path, case):
    before = planted(tmp_path / "before")
    changes = dict([SAME[case][1:]])
    if case == "a definition's name":  # wherever it is used
        for name, text in FILES.items():
            path = tmp_path / "after" / name
            path.parent.mkdir(exist_ok=True, parents=True)
            path.write_text(text.replace(*SAME[case][1:]))
        after = versions.Versions(tmp_path / "after").of(tmp_path / "after/planted/one.py").split(".")
    else:
        after = planted(tmp_path / "after", SAME[case][0], *next(iter(changes.items())))
    assert after == before


@pytest.mark.parametrize("case", OTHER)
def test_what_changes_behaviour_changes_what_is_computed(tmp_path, case):
    before, after = planted(tmp_path / "before"), planted(tmp_path / "after", *OTHER[case])
    assert after[0] != before[0]


def test_glue_changes_the_hosts_part_alone(tmp_path):
    glue = "runtime/autograd.py", "backward(*given)", "backward(*list(given))"
    before, after = planted(tmp_path / "before"), planted(tmp_path / "after", *glue)
    assert after[0] == before[0]
    assert after[1] != before[1]


def test_device_code_changes_the_kernels_part_alone(tmp_path):
    before, after = planted(tmp_path / "before"), planted(tmp_path / "after", *OTHER["a kernel's body"])
    assert (after[0] != before[0], after[1]) == (True, before[1])


def test_a_file_may_move(tmp_path):
    before = planted(tmp_path / "before")
    planted(tmp_path / "after")
    folder = tmp_path / "after" / "planted"
    (folder / "inner").mkdir()
    (folder / "inner" / "__init__.py").touch()
    (folder / "_tiles.py").rename(folder / "inner" / "tiles.py")
    file = folder / "one.py"
    file.write_text(file.read_text().replace("from ._tiles", "from .inner.tiles"))
    assert versions.Versions(tmp_path / "after").of(file).split(".") == before


def test_definitions_that_call_each_other_have_versions(tmp_path):
    text = '"""."""\n\ndef build(n):\n    return n and other(n)\n\ndef other(n):\n    return build(n - 1)\n'

    def version(text):
        (tmp_path / "one.py").write_text(text)
        return versions.Versions(tmp_path).of(tmp_path / "one.py")

    assert version(text) == version(text.replace("other", "another"))
    assert version(text) != version(text.replace("n - 1", "n - 2"))


def test_the_files_that_are_the_hosts_are_there():
    for name in (*digests.HOST, *digests.DEVICE):
        assert (ROOT / name).exists(), f"{name} moved: name its new place in kernels/versions/digests.py"


def test_digests_are_the_same_on_every_python(tmp_path):
    # made once, on 3.11: a Python whose syntax trees differ must not change a version
    assert ".".join(planted(tmp_path)) == GOLDEN


GOLDEN = "96453d058209.4828d885b007"


def pythons():
    """The Pythons from 3.11 to 3.14 that are here: this one, and those of other versions that run."""
    names = (f"python3.{minor}" for minor in range(11, 15) if minor != sys.version_info.minor)
    others = [name for name in names if shutil.which(name)]
    runs = [subprocess.run([name, "--version"], capture_output=True, check=False) for name in others]
    return [sys.executable, *(name for name, run in zip(others, runs, strict=True) if run.returncode == 0)]


@pytest.mark.parametrize("python", pythons(), ids=lambda name: Path(name).name)
def test_versions_of_implementations_are_the_same_on_every_python(python):
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from pathlib import Path\n"
        "from kernels.versions import Versions\n"
        "found = Versions(Path(sys.argv[1]) / 'kernels')\n"
        "print(json.dumps([found.of(Path(file)) for file in sys.argv[2:]]))"
    )
    known = {
        str(ROOT / "operators" / operator / f"{name}.py"): one.version
        for operator in ("lstm", "linear", "attention", "rms_norm")
        for name, one in registry.implementations(operator).items()
    }
    done = subprocess.run(
        [python, "-I", "-c", script, str(ROOT.parent), *known], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == list(known.values())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a  +  b", "a+b"),
        ("x[i]; // last", "x [ i ] ;"),
        ('s = "a // b";', 's = "a // b"; /* c */'),
        ("#define A 1 \\\n  + 2\nint b;", "#define A 1 + 2\nint  b ;"),
    ],
)
def test_c_texts_that_differ_in_form(one, other):
    assert canonical.c_text(one) == canonical.c_text(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a + +b", "a ++b"),
        ('"a  b"', '"a b"'),
        ("int a", "inta"),
        ("#define A 1\nint b;", "#define A 1 int b;"),
        ("1.5f", "1. 5f"),
    ],
)
def test_c_texts_that_differ_in_meaning(one, other):
    assert canonical.c_text(one) != canonical.c_text(other)


@pytest.fixture
def known_aliases(monkeypatch):
    """Aliases of one implementation, and no others."""

    def plant(following):
        monkeypatch.setattr(aliases, "successors", lambda: {("lstm", "fused"): following})
        aliases._followed.cache_clear()

    yield plant
    aliases._followed.cache_clear()


def test_an_alias_keeps_measurements_in_every_regime(known_aliases):
    known_aliases({"0" * 12: "k1.h1", "k1.h1": "k2.h2"})
    for regime in (None, "launched", "graph", "compiled"):
        assert versions.holds("lstm", "fused", "0" * 12, "k2.h2", regime)
        assert versions.holds("lstm", "fused", "k1.h1", "k2.h2", regime)
        assert not versions.holds("lstm", "fused", "1" * 12, "k2.h2", regime)
        assert not versions.holds("lstm", "unfused", "0" * 12, "k2.h2", regime)
        assert not versions.holds("lstm", "fused", "0" * 12, None, regime)
    assert versions.standing_for("lstm", "fused", "0" * 12, "k2.h2") == "k2.h2"
    assert versions.standing_for("lstm", "fused", "k0.h0", "k2.h2") == "k0.h0"
    assert set(versions.equivalents("lstm", "fused", "k2.h2")) == {"k2.h2", "k1.h1", "0" * 12}


def test_a_change_of_the_host_leaves_times_of_graphs(known_aliases):
    known_aliases({"0" * 12: "k1.h1"})
    for recorded in ("k1.h1", "0" * 12):
        assert versions.holds("lstm", "fused", recorded, "k1.h2", "graph")
        assert not versions.holds("lstm", "fused", recorded, "k1.h2", "launched")
        assert not versions.holds("lstm", "fused", recorded, "k1.h2")
        assert not versions.holds("lstm", "fused", recorded, "k2.h1", "graph")


def test_code_that_goes_back_and_forth_holds(known_aliases):
    known_aliases({"k1.h1": "k2.h2", "k2.h2": "k1.h1"})
    for now in ("k1.h1", "k2.h2"):
        assert all(versions.holds("lstm", "fused", one, now) for one in ("k1.h1", "k2.h2"))


def test_every_alias_has_a_reason_and_is_of_an_implementation():
    groups = aliases.read(aliases.FILE)
    assert all(group["reason"].strip() for group in groups)
    for name in {name for group in groups for name in group["versions"]}:
        operator, _, implementation = name.partition("/")
        assert implementation in registry.implementations(operator)


def test_no_node_of_a_tree_is_left_out_by_mistake():
    """What is skipped by name is skipped on purpose."""
    every = {
        field
        for kind in vars(ast).values()
        if isinstance(kind, type)
        for field in getattr(kind, "_fields", ())
    }
    assert not canonical.SKIPPED - every - {"type_params"}


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A copy of the kernels' sources."""
    root = tmp_path_factory.mktemp("copy") / "kernels"
    shutil.copytree(registry.ROOT, root, ignore=shutil.ignore_patterns("__pycache__"))
    return root


@pytest.mark.parametrize(
    ("source", "covered", "apart"),
    [
        ("recurrent/persistent/kernel.cu", ["lstm/persistent", "gru/persistent_recompute"], "lstm/fused"),
        ("recurrent/persistent/cells.cuh", ["rnn/persistent"], "attention/warpgroup"),
        ("recurrent/persistent/hopper.cuh", ["lstm/persistent", "lstm/persistent_recompute"], "lstm/fused"),
        ("recurrent/persistent/replay.cu", ["lstm/persistent_recompute"], "lstm/persistent"),
        ("operators/attention/_warpgroup/warpgroup.cuh", ["attention/warpgroup"], "lstm/persistent"),
        ("operators/attention/_warpgroup/keys.cu", ["attention/warpgroup"], "attention/fused"),
    ],
)
def test_cuda_sources_belong_to_the_kernel(copied, source, covered, apart):
    path = copied / source
    before = path.read_text()
    path.write_text(f"{before}\n__constant__ int further = 1;\n")
    try:
        found = versions.Versions(copied)
        now = {name: found.of(copied / "operators" / f"{name}.py") for name in (*covered, apart)}
    finally:
        path.write_text(before)
    was = {name: registry.implementation(*name.split("/")).version for name in now}
    assert all(versions.kernel_part(now[name]) != versions.kernel_part(was[name]) for name in covered)
    assert now[apart] == was[apart]
