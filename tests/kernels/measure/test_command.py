import json
import subprocess
import sys

import planted
import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import CorruptRecord, Record, SelectorError, Status
from kernel_selector.kernels.measure.__main__ import main
from kernel_selector.kernels.measure.sweeps import Finished, InvalidDuration, parse_grid, parse_seconds

SMALL = ["lstm", "hidden=8", "batch=2", "seq=3", "--device", "cpu"]

# runs at the start of every Python process, the measuring child included
BLOCK = """
import sys
import torch

# torch itself needs the others
NEEDED = {"torch", "kernels", "sympy", "mpmath", "networkx", "jinja2", "fsspec", "filelock"}

class Block:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top not in sys.stdlib_module_names and top not in NEEDED:
            raise ModuleNotFoundError(f"blocked: {name}", name=name)

sys.meta_path.insert(0, Block())
"""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    return planted.checkout(tmp_path_factory.mktemp("bare"))


def test_torch_and_the_standard_library_are_enough(checkout, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCK)
    blocked = subprocess.run(
        [sys.executable, "-c", "import sqlalchemy"],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "blocked: sqlalchemy" in blocked.stderr
    run = planted.measure(checkout, *SMALL[:4], PYTHONPATH=str(tmp_path))
    assert run.returncode == 0, run.stderr
    assert "NumPy" not in run.stderr
    records = [Record.from_json(line) for line in run.stdout.splitlines()]
    assert {record.implementation for record in records} == registry.implementations("lstm").keys()
    measured = {
        record.implementation: record for record in records if record.status is not Status.UNSUPPORTED
    }
    assert {record.status: record.reason for record in measured.values()} == {Status.OK: ""}
    assert {"torch_lstm", "hoisted", "unfused"} <= measured.keys()


def test_an_output_file_is_resumed(tmp_path, capsys):
    output = tmp_path / "records.jsonl"
    words = [*SMALL, "--implementations", "torch_lstm", "--output", str(output)]
    assert main(words) == 0
    assert "1 problems to measure, 0 already done" in capsys.readouterr().err
    first = output.read_text()
    # as a write that was cut off leaves it
    output.write_text(first + first[:100])
    assert main(words) == 0
    assert "0 problems to measure, 1 already done" in capsys.readouterr().err
    assert output.read_text() == first
    words[words.index("torch_lstm")] = "torch_lstm,hoisted"
    assert main(words) == 0
    names = [json.loads(line)["implementation"] for line in output.read_text().splitlines()]
    assert names == ["torch_lstm", "hoisted"]


def test_a_spent_budget_starts_nothing_more(capsys):
    words = ["lstm", "hidden=4,8", "batch=2", "seq=3", "--device", "cpu", "--implementations", "torch_lstm"]
    assert main([*words, "--budget", "0.0001s"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "The budget is spent: 2 problems are left." in captured.err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["lstmm", "hidden=8", "batch=2"], "Did you mean 'lstm'"),
        (["lstm", "hiden=8", "batch=2"], "Did you mean 'hidden'"),
        (["lstm", "hidden=8"], "needs batch"),
        (["lstm", "hidden=0", "batch=2"], "hidden='0'"),
        (["lstm", "hidden=-1", "batch=2"], "hidden='-1'"),
        (["lstm", "hidden=1.5", "batch=2"], "1.5"),
        (["lstm", "hidden=8,,9", "batch=2"], "expected name=value"),
        (["lstm", "hidden", "batch=2"], "expected name=value"),
        (["lstm", "hidden=8", "hidden=9", "batch=2"], "given twice"),
        (["lstm", "hidden=8", "hidden_size=9", "batch=2"], "hidden_size"),
        ([*SMALL, "--implementations", "cudnn"], "Unknown implementation 'cudnn'"),
        ([*SMALL[:4], "--device", "tpu"], "No device 'tpu'"),
        ([*SMALL, "--policy", "slow"], "Unknown policy 'slow'"),
        ([*SMALL, "--budget", "soon"], "'soon': expected a duration"),
        ([*SMALL, "--output", "/nowhere/at/all.jsonl"], "the folder /nowhere/at does not exist"),
        ([*SMALL, "--output", "/"], "--output / is a folder: give a file"),
        ([*SMALL, "--seed", str(2**63)], "from 0 to 9223372036854775807"),
        ([*SMALL, "--seed", "9" * 5000], "5000 characters"),
        ([*SMALL, "--seed=-1"], "--seed '-1'"),
        ([*SMALL, "--seed", "one"], "--seed 'one'"),
        (["lstm", "hidden=" + "9" * 5000, "batch=2"], "5000 characters"),
    ],
)
def test_a_mistake_gives_one_line_and_exit_code_2(capsys, words, expected):
    assert main(words) == 2
    captured = capsys.readouterr()
    assert expected in captured.err
    assert "Traceback" not in captured.err
    assert captured.err.count("\n") == 1
    assert len(captured.err) < 500
    assert captured.out == ""


def test_help_is_enough_to_start_from(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for word in ("lstm hidden=64,128 batch=8", "--output", "--budget", "quick or thorough", "lstm"):
        assert word in text


def test_a_grid_is_every_combination_once():
    problems = parse_grid(registry.operator("lstm"), ["hidden=8,16,8", "batch=1,2", "mode=inference"])
    assert [(one.hidden, one.batch) for one in problems] == [(8, 1), (8, 2), (16, 1), (16, 2)]


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("10m", 600), ("1.5h", 5400)])
def test_durations(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "-1s", "1d", "nan", "inf", "m"])
def test_no_durations(text):
    with pytest.raises(InvalidDuration, match="expected a duration") as error:
        parse_seconds(text)
    assert isinstance(error.value, SelectorError)


def test_a_file_that_holds_something_else_is_left_alone(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("milk\neggs")
    with pytest.raises(CorruptRecord, match=r"line 1: .*: 'milk'\. Move the file away to start anew\.$"):
        Finished.read(file)
    assert file.read_text() == "milk\neggs"
