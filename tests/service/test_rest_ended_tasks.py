"""What comes for a task after its end."""

import json

from kernel_selector.kernels import registry
from tests.selector import replay
from tests.service.test_rest_jobs import CLAIM, client, create, post, service, stored

__all__ = ["client", "service"]  # fixtures


def test_a_task_that_is_done_takes_no_further_records(client, empty_database):
    create(client)
    task = post(client, "claim", CLAIM)["assignment"]
    problem = registry.operator("lstm").problem(task["problem"]["hyperparameters"])
    first, aside, more = (
        json.loads(replay.record(problem, name).to_json()) for name in ("torch_lstm", "cell_loop", "hoisted")
    )
    aside["measured_at"] = "2999-01-01T00:00:00+00:00"
    end = {"task": task["task"], "lease": task["lease"], "outcome": "done"}
    known = {"known": 0, "waiting": 0, "known_waiting": 0, "known_retracted": 0}
    counts = {"received": 2, "added": 1, **known, "quarantined": 1}
    assert post(client, "finish", {**end, "records": [first, aside]}) == counts
    repeated = {**counts, "added": 0, "known": 1}
    assert post(client, "finish", {**end, "records": [first, aside]}) == repeated
    for sent in ([more], [first, aside, more]):
        refused = post(client, "finish", {**end, "records": sent}, 409)
        assert refused["type"].endswith(":task-lost")
        assert "without 1 of these records" in refused["detail"]
    assert stored(empty_database) == 1
    assert client.get("/v1/profiling-jobs/1").json()["records"] == 2
