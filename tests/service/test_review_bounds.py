"""Figures over HTTP that no machine can give: each is set aside, though nothing is known of its problem."""

import pytest

from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Record, Status
from kernel_selector.kernels.contract.record import TIMINGS
from kernel_selector.service.ingest.bounds import impossible_figures
from kernel_selector.service.ingest.figures import Least, impossible
from kernel_selector.service.openapi.example_record import LINE
from selector.selection import shipped
from tests.service.test_rest_measurements import client, database, made, send  # noqa: F401 - fixtures
from tests.service.test_rest_odd_records import FAILED, changed


def timing(ms, **more):
    return {"p20_ms": ms, "p50_ms": ms, "p80_ms": ms, "samples": 9, "raw_ms": [], **more}


def of_relu(**more):
    """Values of a record of a large ReLU, which takes 2 ms at the rate at which an H200 copies."""
    problem = {"operator": "relu", "elements": 10**9, "dtype": "float32", "mode": "inference"}
    name, memory = "torch_relu", {"peak_bytes": 4 * 10**9, "held_bytes": 4 * 10**9, "workspace_bytes": 0}
    version = registry.implementation("relu", name).version
    return {
        "problem": problem,
        "implementation": name,
        "implementation_version": version,
        "memory": {**memory, "kept_argument_bytes": None},
        "forward_backward": None,
        **more,
    }


TINY = timing(1e-6)
IMPOSSIBLE = {
    "a graph of a nanosecond": ({"graph_forward": TINY}, "graph_forward of 0.001 us, where"),
    "both graphs of a nanosecond": ({"graph_forward_backward": TINY}, "graph_forward_backward of "),
    "a graph faster than its chain of kernels": (
        {"implementation": "cell_loop", "graph_forward_backward": timing(0.005)},
        "kernels that follow each other take",
    ),
    "a forward pass faster than its operations": ({"forward": timing(0.006)}, "forward of 6 us, where its "),
    "less time than its bytes take": (
        of_relu(forward=timing(0.002)),
        "2 us, where its bytes take 465 us at 4 times the device's rate of copies",
    ),
    "a part beyond the whole": ({"forward": timing(60_000.0)}, "where forward_backward takes 5.9"),
    "a graph beyond the runs": ({"graph_forward_backward": timing(60.0)}, "where forward_backward takes 5.9"),
    "percentiles of something else": (
        {"forward_backward__p80_ms": 3.5e6, "forward_backward__samples": 1},
        "expected percentiles of one kind of run",
    ),
    "samples of something else": (
        {"forward_backward__raw_ms": [0.5] * 9},
        "expected the percentiles of these samples",
    ),
    "slower samples than percentiles": (
        {"forward_backward__raw_ms": [50.0] * 9},
        "expected the percentiles of these samples",
    ),
    "no bytes": (
        {"memory": dict.fromkeys(("peak_bytes", "held_bytes", "workspace_bytes"), 0)},
        "0 B at most",
    ),
    "a byte": ({"memory__peak_bytes": 1, "memory__held_bytes": 0}, "1 B at most at once, where its tensors"),
    "nothing kept for backward": ({"memory__held_bytes": 0}, "0 B kept for backward, which needs "),
    "nothing of its own kept either": (
        {"memory__held_bytes": 0, "memory__kept_argument_bytes": 0},
        "0 B kept for backward, which needs ",
    ),
    "a workspace beyond the peak": ({"memory__workspace_bytes": 2**32}, "workspace_bytes of 4 GiB, where"),
    "more arguments than there are": (
        {"memory__kept_argument_bytes": 2**36},
        "kept_argument_bytes of 64 GiB",
    ),
    "no memory for a hundredth of it": (
        {"problem__hidden": 513, "problem__input": 513, "problem__batch": 67, "problem__seq": 53, **FAILED},
        "ran out of 141 GiB of memory with tensors of ",
    ),
}


@pytest.mark.parametrize(("values", "words"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_a_figure_that_cannot_be_is_set_aside(client, values, words):  # noqa: F811
    if "implementation" in values and "implementation_version" not in values:
        version = registry.implementation("lstm", values["implementation"]).version
        values = {**values, "implementation_version": version}
    (aside,) = send(client, [changed(**values)]).json()["quarantined"]
    assert words in aside["detail"], aside
    assert client.get("/v1/measurements").json()["items"] == []


POSSIBLE = {
    "graphs faster than runs": {"graph_forward": timing(1.0), "graph_forward_backward": timing(3.0)},
    "a slow host": {"forward": timing(12.0)},
    "a relu": of_relu(forward=timing(2.0)),
    "a relu whose bytes are in a cache": of_relu(forward=timing(0.6)),
    "a host that came to a stop": {"forward_backward__p80_ms": 3000.0},
    "a workspace that was given back": {"memory__workspace_bytes": 130_000_000},
    "what backward keeps of the arguments": {"memory__held_bytes": 0, "memory__kept_argument_bytes": 2**25},
    "no memory for much": {"problem__batch": 4096, "problem__seq": 512, **FAILED},
}


@pytest.mark.parametrize("values", POSSIBLE.values(), ids=POSSIBLE)
def test_a_figure_that_can_be_counts(client, values):  # noqa: F811
    answer = send(client, [changed(**values)]).json()
    assert (answer["added"], answer["quarantined"]) == (1, [])


KNOWN = {
    "graph_forward": timing(1.0),
    "graph_forward_backward": timing(4.0),
    "memory__peak_bytes": 2**30,
    "memory__held_bytes": 2**28,
}
LIES = {
    "a fast graph": ("graph_forward_backward", {"graph_forward_backward": timing(0.45)}, "4 ms"),
    "a fast graph of forward": ("graph_forward", {"graph_forward": timing(0.1)}, "1 ms"),
    "a slow graph": ("graph_forward", {"graph_forward": timing(8.1), "forward": timing(4.0)}, "1 ms"),
    "a fast forward pass": ("forward", {"forward": timing(0.2), "graph_forward": None}, "1.9 ms"),
    "a low peak": ("peak_bytes", {"memory__peak_bytes": 2**29 - 2**26}, "1 GiB"),
    "a high peak": ("peak_bytes", {"memory__peak_bytes": 2**31 + 2**27}, "1 GiB"),
    "little held": ("held_bytes", {"memory__held_bytes": 2**26}, "256 MiB"),
}
GRAPHS = {**KNOWN, "graph_forward": timing(0.9), "graph_forward_backward": timing(0.55)}


@pytest.mark.parametrize(("name", "values", "known"), LIES.values(), ids=LIES)
def test_each_figure_is_held_against_what_is_known_of_it(client, name, values, known):  # noqa: F811
    if name == "graph_forward":  # the time of both is in between
        values = {"graph_forward_backward": timing(2.1), **values}
    assert send(client, [changed(**KNOWN)]).json()["added"] == 1
    (aside,) = send(client, [changed(**{**KNOWN, **values})]).json()["quarantined"]
    assert aside["detail"].startswith(f"{name} of "), aside
    assert aside["detail"].endswith(f", where the median of 1 record is {known}"), aside


NO_LIES = {
    "graphs that are faster by less than eight": GRAPHS,
    "no graphs": {**KNOWN, "graph_forward": None, "graph_forward_backward": None},
    "a workspace more": {**KNOWN, "memory__peak_bytes": 2**30 + 2**26, "memory__held_bytes": 2**28 + 2**26},
    "a workspace less": {**KNOWN, "memory__peak_bytes": 2**30 - 2**26, "memory__held_bytes": 2**28 - 2**26},
}


@pytest.mark.parametrize("values", NO_LIES.values(), ids=NO_LIES)
def test_figures_may_differ_as_those_of_one_kind_of_machine_do(client, values):  # noqa: F811
    for one in (KNOWN, {**values, "environment__driver": "another"}):
        answer = send(client, [changed(**one)]).json()
        assert (answer["added"], answer["quarantined"]) == (1, [])


LARGE = {
    "problem__batch": 4096,
    "problem__seq": 512,
    "memory": {"peak_bytes": 2**36, "held_bytes": 2**35, "workspace_bytes": 0, "kept_argument_bytes": 0},
    **dict.fromkeys(("forward", "forward_backward"), timing(2000.0)),
}
SMALLER = {**LARGE, "problem__batch": 4000, **FAILED}
MEMORY = {
    "less of it": (SMALLER, True),
    "as much": ({**LARGE, **FAILED, "environment__driver": "another"}, True),
    "more in one size": ({**SMALLER, "problem__seq": 513}, False),
    "less of another layer": ({**SMALLER, "problem__bidirectional": True}, False),
    "less by another": ({**SMALLER, "implementation": "hoisted"}, False),
    "less by another failure": ({**SMALLER, "status": "crashed"}, False),
}


@pytest.mark.parametrize(("values", "contradicts"), MEMORY.values(), ids=MEMORY)
def test_too_little_memory_is_set_aside_where_it_does_for_more(client, values, contradicts):  # noqa: F811
    assert send(client, [changed(**LARGE)]).json()["added"] == 1
    version = registry.implementation("lstm", values.get("implementation", "torch_lstm")).version
    answer = send(client, [changed(**{**values, "implementation_version": version})]).json()
    assert len(answer["quarantined"]) == contradicts, answer
    if contradicts:
        detail = answer["quarantined"][0]["detail"]
        assert detail.startswith("ran out of memory, where ")
        assert "good" in detail


def test_what_ships_is_within_the_bounds():
    """Of every fortieth measurement of all operators and devices."""
    from kernel_selector.db import records

    with shipped.opened().read() as connection:
        found = list(records.find(connection))[::40]
    good = [one for one in found if one.status is Status.OK and registry.is_valid(one.problem)]
    known = [one for one in good if one.implementation in registry.implementations(one.problem.operator)]
    assert {one.problem.operator for one in known} == registry.operators().keys()
    assert len(known) > 2000
    assert len({one.device.key for one in known}) == 3
    for one in known:
        least = Least.of(one.problem, one.implementation, one.device)
        assert (impossible(one, least), impossible_figures(one, one.device)) == (None, None), one


def test_of_a_device_without_rates_only_what_holds_anywhere_is_asked():
    record = Record.from_json(LINE)
    least = Least.of(record.problem, record.implementation, Device(name="A card", kind="cpu", vendor=""))
    assert least.forward == least.whole == (1e-3, "where nothing takes less than 1 us")
    assert impossible(record, least) is None
    assert {name for name in TIMINGS if getattr(record, name)} == {"forward", "forward_backward"}
