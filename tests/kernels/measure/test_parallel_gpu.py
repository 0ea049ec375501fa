"""Candidates that misbehave on a GPU, one record each, and the sweep goes on."""

import json

import planted
import pytest
from twins import GPU

from kernel_selector.kernels.contract import Record, Status

pytestmark = GPU

BODIES = {
    # an assertion on the device: the context answers nothing any more
    "breaks_context": "x.new_zeros(4)[torch.full((1,), 10**6, device=x.device)]; torch.cuda.synchronize()",
    # the same without waiting: the error arrives when somebody else asks
    "breaks_context_late": "x.new_zeros(4)[torch.full((1,), 10**6, device=x.device)]",
    "hangs_on_device": "torch.cuda._sleep(10**13); torch.cuda.synchronize()",
    "greedy_on_device": "torch.empty(2**50, device=x.device)",
    "leaks_on_device": "LEAK.append(torch.ones(2**24, device=x.device))",
    "wrong_on_device": "y = y * 1.01",
}
EXPECTED = {
    "breaks_context": Status.CRASHED,
    "breaks_context_late": Status.CRASHED,
    "hangs_on_device": Status.TIMEOUT,
    "greedy_on_device": Status.OUT_OF_MEMORY,
    "leaks_on_device": Status.OK,
    "wrong_on_device": Status.INCORRECT,
    "torch_lstm": Status.OK,
    "hoisted": Status.OK,
}


@pytest.mark.parametrize("judges", [0, 2])
def test_each_misbehaviour_costs_one_record_a_problem(tmp_path, judges):
    folder = planted.checkout(tmp_path / "checkout")
    for name, body in BODIES.items():
        planted.plant(folder, name, body=body)
    plan, output = folder / "plan.jsonl", folder / "out.jsonl"
    given = {"hidden": 32, "batch": 4, "seq": 5}
    lines = [
        {"operator": "lstm", "hyperparameters": {**given, "hidden": hidden}, "implementations": [*EXPECTED]}
        for hidden in (32, 48)
    ]
    plan.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = ["--problems", str(plan), "--judges", str(judges), "--timeout", "20s", "--output", str(output)]
    run = planted.measure(folder, *words, device="cuda:0")
    assert run.returncode == 0, run.stderr
    records = [Record.from_json(line) for line in output.read_text().splitlines()]
    found = {(record.implementation, record.problem["hidden"]): record for record in records}
    assert len(found) == len(records) == 2 * len(EXPECTED)
    for (name, _), record in found.items():
        assert record.status is EXPECTED[name], record.reason
