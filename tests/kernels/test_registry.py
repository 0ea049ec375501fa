"""Operators and implementations are found by listing folders; a version follows the sources."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import timeit

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Problem, UnknownImplementation, UnknownOperator, Work
from kernel_selector.kernels.versions import Versions

PLANTED = '''"""nn.LSTM under another name, planted by a test."""

from torch import nn

from .torch_lstm import build as build_torch_lstm


def unsupported(problem, device):
    return "takes no batch above 100" if problem["batch"] > 100 else None


def build(problem):
    return build_torch_lstm(problem)
'''
ASK = """
import json
from kernels import registry
from kernels.contract import Device
from kernels.gate import Gate

operator = registry.operator("lstm")
device = Device(name="a processor", kind="cpu")
problem = operator.problem(hidden=8, batch=2, seq=3)
names = [candidate.name for candidate in registry.candidates(problem, device)[0]]
refused = registry.candidates(operator.problem(hidden=8, batch=101), device)[1]
result = Gate(problem, "cpu").check(registry.implementation("lstm", "planted").build(problem))
versions = {name: found.version for name, found in registry.implementations("lstm").items()}
print(json.dumps({"names": names, "refused": refused, "passed": result.passed, "versions": versions}))
"""


@pytest.fixture
def checkout(tmp_path):
    """A copy of the kernels folder, with nothing else beside it."""
    return copied(tmp_path)


def copied(folder):
    shutil.copytree(registry.ROOT.resolve(), folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def ask(checkout, script=ASK, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_planted_file_is_a_candidate_gated_and_refused_for_its_reason(checkout):
    (checkout / "kernels" / "operators" / "lstm" / "planted.py").write_text(PLANTED)
    answer = ask(checkout)
    assert "planted" in answer["names"]
    problem = registry.operator("lstm").problem(hidden=8, batch=2, seq=3)
    accepted, _ = registry.candidates(problem, Device(name="a processor", kind="cpu"))
    assert set(answer["names"]) == {*(found.name for found in accepted), "planted"}
    assert answer["passed"]
    assert answer["refused"]["planted"] == "takes no batch above 100"
    # the copy's versions are ours: they hang on sources alone
    for name, found in registry.implementations("lstm").items():
        assert answer["versions"][name] == found.version


def test_a_version_follows_what_build_reaches_in_the_files_that_it_imports(checkout):
    folder = checkout / "kernels"

    def found():
        known = Versions(folder)
        return {
            name: known.of(folder / "operators" / "lstm" / f"{name}.py")
            for name in ("hoisted", "recompute", "unfused", "torch_lstm")
        }

    def changed_by(name, before, after):
        versions, file = found(), folder / name
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after))
        return {name for name, version in found().items() if version != versions[name]}

    assert changed_by("recurrent/hoisted/lstm.py", "torch.empty", "torch.zeros") == {"hoisted", "recompute"}
    assert changed_by("recurrent/module.py", ".new_zeros(", ".new_ones(") == {
        "hoisted",
        "recompute",
        "unfused",
        "torch_lstm",  # which it takes into graphs of torch.compile
    }
    assert changed_by("operators/lstm/unfused.py", "return ", "return None or ") == {"unfused"}
    assert changed_by("operators/lstm/reference.py", "return ", "return None or ") == set()
    assert changed_by("gate/gate.py", "return ", "return None or ") == set()


def test_private_files_and_the_reference_are_no_candidates():
    for operator in registry.operators():
        names = registry.implementations(operator)
        assert "reference" not in names
        assert not [name for name in names if name.startswith("_")]
        assert registry.operator(operator).default in names
        assert [name for name, found in names.items() if found.default] == [
            registry.operator(operator).default
        ]


@pytest.mark.parametrize("name", ["lstmm", "", None, 3, ["lstm"]])
def test_an_unknown_operator_lists_the_known(name):
    with pytest.raises(UnknownOperator, match=r"Known: .*lstm"):
        registry.operator(name)


@pytest.mark.parametrize("name", ["hoistd", "reference", "_shared", None, ["hoisted"]])
def test_an_unknown_implementation_lists_the_known(name):
    with pytest.raises(UnknownImplementation, match="torch_lstm"):
        registry.implementation("lstm", name)


def test_what_is_gone_says_what_took_its_place():
    gone = {
        (operator, name): one
        for operator in registry.operators()
        for name, (one, _) in registry._retired(operator).items()
    }
    assert ("linear", "pre_transposed") in gone
    for (operator, name), successor in gone.items():
        assert name not in registry.implementations(operator)
        words = registry.retirement(operator, name)
        assert words.endswith(f"{successor} takes its place.")
        assert registry.named(operator, name) is registry.implementation(operator, successor)
        with pytest.raises(UnknownImplementation, match=f"{name} of {operator} was taken out: .* Known: "):
            registry.implementation(operator, name)
    assert registry.retirement("lstm", "hoisted") is None
    assert registry.named("lstm", "hoisted").name == "hoisted"
    with pytest.raises(UnknownImplementation, match="Did you mean 'hoisted'"):
        registry.named("lstm", "hoistd")


def test_candidates_are_all_implementations_less_the_refused():
    device = Device(name="a processor", kind="cpu")
    problem = registry.operator("lstm").problem(hidden=8, batch=2, dtype="bfloat16", seq=200)
    accepted, refused = registry.candidates(problem, device)
    assert sorted([candidate.name for candidate in accepted] + list(refused)) == list(
        registry.implementations("lstm")
    )
    assert {"cell_loop", "unfused"} <= set(refused)


def _stored(**changes):
    values = {**registry.operator("lstm").problem(hidden=8, batch=2).as_dict, **changes}
    return Problem("lstm", tuple((name, value) for name, value in values.items() if value != "left out"))


def test_only_what_todays_operator_makes_is_valid():
    assert registry.is_valid(_stored())
    assert registry.is_valid(_stored(hidden=16, mode="inference"))
    for changes in (
        {"hidden": "8"},
        {"hidden": -5},
        {"hidden": True},
        {"hidden": 8.0},
        {"hidden": 65537},
        {"hidden": [8]},
        {"hidden": None},
        {"bias": 1},
        {"dtype": "fp32"},
        {"dtype": "float8"},
        {"foo": 3},
        {"seq": "left out"},
    ):
        assert not registry.is_valid(_stored(**changes)), changes
    assert not registry.is_valid(Problem("lstmm", _stored().values))
    assert not registry.is_valid(Problem("lstm", _stored().values[::-1]))
    assert not registry.is_valid(Problem("lstm", ()))


def test_many_stored_problems_are_judged_quickly():
    problem = _stored()
    registry.is_valid(problem)
    seconds = min(timeit.repeat(lambda: registry.is_valid(problem), number=200, repeat=10)) / 200
    assert seconds < 50e-6  # a few microseconds on an idle core


BREAKAGES = {
    "import error": ("import no_such_module\n", "No module named 'no_such_module'"),
    "syntax error": ("def build(problem:\n", "SyntaxError"),
    "raises": ("raise SystemExit(3)\n", "SystemExit: 3"),
    "no build": ('"""A candidate."""\n\ndef unsupported(problem, device): ...\n', "it lacks build"),
    "nothing": ("", "it lacks __doc__, unsupported, build"),
    "no docstring": (PLANTED.partition("\n")[2], "it lacks __doc__"),
    "late syntax error": (
        PLANTED.replace(
            "    return build_torch", "    from ._bad import late\n\n    late()\n    return build_torch"
        ),
        "SyntaxError",
    ),
}
ASK_BROKEN = """
import json
from kernels import registry
from kernels.contract import BrokenImplementation, SelectorError

try:
    registry.implementations("lstm")
except BrokenImplementation as error:
    print(json.dumps([str(error), isinstance(error, SelectorError)]), flush=True)
"""
# each in a fork of its own, since torch takes seconds to import
ASK_EACH = """
import json, os, sys
from pathlib import Path
import torch

sys.dont_write_bytecode = True
answers, (script, *sources) = [], sys.argv[1:]
for source in sources:
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(writer, 1)
        Path("kernels/operators/lstm/planted.py").write_text(source)
        exec(script)
        os._exit(0)
    os.close(writer)
    with open(reader) as said:
        answers.append(json.load(said))
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def broken(tmp_path_factory):
    """What is said of each broken file, by its case, and the file."""
    checkout = copied(tmp_path_factory.mktemp("broken"))
    (checkout / "kernels" / "operators" / "lstm" / "_bad.py").write_text("def\n")
    said = ask(checkout, ASK_EACH, ASK_BROKEN, *(source for source, _ in BREAKAGES.values()))
    return checkout / "kernels" / "operators" / "lstm" / "planted.py", dict(zip(BREAKAGES, said, strict=True))


@pytest.mark.parametrize("case", BREAKAGES)
def test_a_broken_file_is_named_with_its_cause_and_what_it_must_define(broken, case):
    _, cause = BREAKAGES[case]
    file, said = broken
    message, ours = said[case]
    assert ours
    assert message.startswith(str(file))
    assert cause in message
    assert "define a docstring and unsupported(problem, device) and build(problem)" in message
    assert "repair the file" in message


def test_a_broken_operator_is_named(checkout):
    folder = checkout / "kernels" / "operators" / "planted"
    folder.mkdir()
    (folder / "reference.py").touch()
    (folder / "__init__.py").write_text("OPERATOR = 'planted'\n")
    message, _ = ask(checkout, ASK_BROKEN)
    assert "planted/__init__.py cannot be used: its OPERATOR is 'planted'" in message


def test_importing_the_registry_imports_neither_torch_nor_anything_heavy():
    script = """
import json, sys
from kernel_selector.kernels import registry
registry.operators()
heavy = {"torch", "numpy", "sqlalchemy", "sklearn", "triton"}
print(json.dumps(sorted(heavy & set(sys.modules))))
"""
    assert ask(registry.ROOT.parent.parent, script) == []


def test_listing_implementations_imports_neither_torch_compile_nor_triton():
    script = """
import json, sys
from kernel_selector.kernels import registry
for name in registry.operators():
    registry.implementations(name)
print(json.dumps(sorted({"torch._dynamo", "torch._inductor", "triton"} & set(sys.modules))))
"""
    assert ask(registry.ROOT.parent.parent, script) == []


def test_the_folder_needs_torch_and_the_standard_library_alone(checkout):
    script = """
import importlib.abc, json, sys

class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"kernel_selector", "selector", "db", "service", "sqlalchemy", "sklearn"}:
            raise ImportError(name)

sys.meta_path.insert(0, Blocked())
from kernels import registry
import kernels.gate
print(json.dumps(list(registry.implementations("lstm"))))
"""
    assert "torch_lstm" in ask(checkout, script)


def test_each_problem_is_counted_once():
    counted = []

    def work(problem):
        counted.append(problem)
        return Work(flops=problem["hidden"], moved_bytes=1, saved_bytes=1, launches=1, steps=1)

    once = registry.cached_work(work, "_work of a test")
    first, second = (registry.operator("lstm").problem(hidden=hidden, batch=1) for hidden in (8, 9))
    assert [once(problem).flops for problem in (first, second, first)] == [8, 9, 8]
    assert counted == [first, second]
    assert first == registry.operator("lstm").problem(hidden=8, batch=1)


@pytest.mark.parametrize("name", ["gru", "lstm", "rnn", "linear", "batched_matmul", "additive_attention"])
def test_implementations_count_on_from_the_cached_work(name):
    operator = registry.operator(name)
    home = vars(sys.modules[operator.work.__module__])
    assert home["work"].__wrapped__ is operator.work.__wrapped__
    for item in registry.implementations(name).values():
        for example in operator.examples:
            problem, other = operator.problem(example), operator.problem(example)
            operator.work(problem)  # before the implementation asks
            assert item.work(problem) == item.work(other)
