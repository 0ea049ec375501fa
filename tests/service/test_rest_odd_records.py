"""Records over HTTP with values that nobody measured: each has an answer, and none spoils another's."""

import gzip
import json

import pytest

from kernel_selector.service.openapi.example_record import LINE
from tests.service.test_rest_measurements import client, database, made, send  # noqa: F401 - fixtures


def changed(**values):
    """The line of a good record with other values; a name with `__` is a path."""
    record = json.loads(LINE)
    for path, value in values.items():
        *steps, last = path.split("__")
        inner = record
        for step in steps:
            inner = inner[step]
        inner[last] = value
    return json.dumps(record).replace('"INFINITY"', "1e400")


ODD = {
    "half a character": changed(reason="\ud800"),
    "half a character in the problem": changed(problem__hidden="\ud800"),
    "an infinite time": changed(forward__raw_ms=["INFINITY"]),
    "a time beyond all floats": changed(forward__raw_ms=[10**400]),
    "before all years": changed(measured_at="0001-01-01T00:00:00+14:00"),
    "after all years": changed(measured_at="9999-12-31T23:59:59-12:00"),
    "no document": "[]",
    "a key given twice": changed()[:-1] + ', "seed": 5}',
    "a key given twice inside": changed().replace('"gate": {', '"gate": {"passed": false, '),
}


@pytest.mark.parametrize("line", ODD.values(), ids=ODD)
def test_what_cannot_be_told_on_is_refused(client, line):  # noqa: F811
    answer = send(client, [line])
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"].endswith(":not-records")
    assert answer.json()["detail"].startswith("1 line is no record; nothing was stored.")
    assert "argument" not in answer.text


@pytest.mark.parametrize("path", ["/v1/measurements", "/v1/choices"])
def test_a_compressed_body_is_refused_as_such(client, path):  # noqa: F811
    kind = "application/x-ndjson" if path == "/v1/measurements" else "application/json"
    headers = {"content-type": kind, "content-encoding": "gzip"}
    answer = client.post(path, content=gzip.compress(LINE.encode()), headers=headers)
    assert answer.status_code == 415, answer.text
    assert "Content-Encoding is 'gzip'" in answer.json()["detail"]
    headers["content-encoding"] = "identity"
    assert client.post(path, content=LINE.encode(), headers=headers).status_code in (200, 422)


@pytest.mark.parametrize("values", [{"reason": "\ud800"}, {"forward__raw_ms": ["INFINITY"]}], ids=str)
def test_what_is_set_aside_can_be_read(client, values):  # noqa: F811
    send(client, [changed(measured_at="2099-01-01T00:00:00+00:00", **values)])
    assert client.get("/v1/quarantine").status_code == 200


@pytest.mark.parametrize("name", ["", "!!!", "x" * 201], ids=["none", "no letter", "long"])
def test_a_device_that_no_question_can_name_is_set_aside(client, name):  # noqa: F811
    (aside,) = send(client, [changed(device__name=name)]).json()["quarantined"]
    assert "no question can name" in aside["detail"]
    assert all(device["key"] and len(device["key"]) < 200 for device in client.get("/v1/devices").json())


FAILED = {
    "status": "out_of_memory",
    "reason": "no memory",
    "gate": {"passed": False, "worst_error_ratio": None, "detail": "no memory"},
    **dict.fromkeys(("forward", "forward_backward", "memory")),
}
ABSURD = {
    "a letter that looks like another": ({"device__name": "NVIDIA \u041d200"}, "expected letters of ASCII"),
    "a letter without width": ({"device__name": "NVIDIA H2\u200b00"}, "expected letters of ASCII"),
    "a dtype that nobody has": (
        {"device__matmul_flops_per_s": {"float13": 1.0}},
        "a rate for 'float13': expected dtypes among float64",
    ),
    "a launch of ages": (
        {"device__launch_us": 1e300},
        "launch_us=1e+300: expected more than 0 and 200 at most",
    ),
    "no cache": ({"device__l2_bytes": 0}, "l2_bytes=0: expected more than 0"),
    "another cache": ({"device__l2_bytes": 10**6}, "l2_bytes=1e+06, where "),
    "half of the memory": ({"device__memory_bytes": 77 * 2**30}, "memory_bytes=8.27e+10, where 1.5"),
    **{
        f"without {name}": ({f"device__{name}": None}, f"without {name}: expected it as the GPU was probed")
        for name in ("memory_bytes", "multiprocessors", "compute_capability", "copy_bytes_per_s", "launch_us")
    },
    "another generation": (
        {"device__compute_capability": [99, 0]},
        "contradict each other: compute_capability=(99, 0), and a NVIDIA H200 has (9, 0)",
    ),
    "more multiprocessors": (
        {"device__multiprocessors": 10**9},
        "multiprocessors=1000000000, and a NVIDIA H200",
    ),
    "a name that questions have": (
        {"device__name": "h200"},
        "a device h200, which stands for NVIDIA H200: expected the name that its driver gives",
    ),
    **{
        f"spelt as {name}": ({"device__name": name}, f"a device {name}, which stands for NVIDIA H200")
        for name in ("Nvidia_H200", "nvidia h200", "NVIDIA-H200")
    },
    "another maker": ({"device__vendor": "AMD"}, "vendor=AMD, and a NVIDIA H200 has NVIDIA"),
    "a name of several": ({"device__name": "A100 80GB"}, "expected the name that its driver gives"),
    "a slow run of ages": ({"forward__p80_ms": 1e300}, "forward of "),
    "more bytes than there are": ({"memory__peak_bytes": 2**62}, "where a NVIDIA H200 has 14"),
    "more kept than ever needed": ({"memory__peak_bytes": 1}, "held, where 1 B is the most at once"),
    "a regime that no question has": (
        {"regime": "graph"},
        "of the regime graph, which no question asks for: expected launched or compiled",
    ),
    "a version of one's own": (
        {"implementation_version": "mine"},
        "in a version 'mine' that is unknown here",
    ),
    "no memory for next to nothing": (
        {"problem__hidden": 1, "problem__input": 1, "problem__batch": 1, "problem__seq": 1, **FAILED},
        "ran out of 14",
    ),
}


@pytest.mark.parametrize(("values", "words"), ABSURD.values(), ids=ABSURD)
def test_what_no_machine_can_give_is_set_aside(client, values, words):  # noqa: F811
    answer = send(client, [changed(**values), LINE]).json()
    (aside,) = answer["quarantined"]
    assert words in aside["detail"], aside
    assert answer["added"] == 1  # beside it a good one counts


LONG = {
    "reason": {"reason": "x" * 1001},
    "gate.detail": {"gate__detail": "x" * 1001},
    "policy": {"policy": "x" * 201},
    "environment.torch": {"environment__torch": "x" * 201},
    "forward.raw_ms": {"forward__raw_ms": [1.0] * 10_001},
}


@pytest.mark.parametrize(("name", "values"), LONG.items(), ids=LONG)
def test_what_is_longer_than_anything_of_ours_is_refused(client, name, values):  # noqa: F811
    answer = send(client, [LINE, changed(**values)])
    assert answer.status_code == 422, answer.text
    assert f"Line 2: {name} has " in answer.json()["detail"]
    assert client.get("/v1/measurements").json()["items"] == []


def test_a_page_ends_where_its_records_are_large(client, monkeypatch):  # noqa: F811
    monkeypatch.setattr("kernel_selector.service.pagination.MOST_BYTES", 3 * len(LINE))
    send(client, [changed(seed=seed) for seed in range(5)])
    pages = [client.get("/v1/measurements").json()]
    while (cursor := pages[-1]["next"]) is not None:
        pages.append(client.get("/v1/measurements", params={"cursor": cursor}).json())
    assert [one["record"]["seed"] for page in pages for one in page["items"]] == list(range(5))
    assert [len(page["items"]) for page in pages] in ([2, 2, 1], [3, 2])
