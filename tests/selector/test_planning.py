"""What schedulers are told: rows with figures or with reasons, rankings, and files in their own formats."""

import ast
import csv
import io
from dataclasses import replace

import pytest

from kernel_selector.kernels.contract import Device, UnknownDevice, UnknownHyperparameter
from kernel_selector.service.scheduling import placement_formats as places
from kernel_selector.service.scheduling import throughput_formats as files
from selector import InvalidRequest, NothingFits, Query
from selector.devices import model_name
from selector.planning import Job, Throughput, feasible, measured_devices, placements, throughputs
from tests.selector import replay

SIZES = {"hidden": 64, "seq": 20}


def job(**more):
    return Job(name="translate", query=Query(hyperparameters={**SIZES, **more}))


def row(batch, time_ms, **more):
    given = {"feasible": True, "reason": "", "time_ms": time_ms, **more}
    return Throughput(**{"job": "translate", "device": "nvidia-h200", "batch": batch, **given})


def test_rows_are_what_the_selector_chooses(trained):
    rows = throughputs(trained, [job()], [replay.HERE.key], [8, 16])
    assert [item.batch for item in rows] == [8, 16]
    for item in rows:
        choice = trained.choose("lstm", device=replay.HERE.key, batch=item.batch, **SIZES)
        assert (item.implementation, item.time_ms) == (choice.implementation, choice.time_ms)
        assert item.items_per_s == pytest.approx(item.batch / choice.time_ms * 1e3)
        assert item.feasible
        assert choice.implementation in item.reason
        assert item.snapshot == choice.snapshot


def test_the_batch_of_the_job_itself(trained):
    (only,) = throughputs(trained, [job(batch=4)], [replay.HERE.key])
    assert only.batch == 4


def test_what_does_not_fit_is_a_row_with_the_reason(trained):
    tight = Job(name="tight", query=Query(hyperparameters={**SIZES, "batch": 8}, memory=1))
    (only,) = throughputs(trained, [tight], [replay.HERE.key])
    assert only.feasible is False
    assert "Nothing fits" in only.reason
    assert only.time_ms is None


def test_the_memory_of_the_device_is_a_limit(trained, monkeypatch):
    small = replace(replay.HERE, memory_bytes=10)
    monkeypatch.setattr("selector.engine.Selector.choose_each", _of_device(small))
    (only,) = throughputs(trained, [job(batch=8)], [replay.HERE.key])
    assert only.feasible is False


def _of_device(device):
    from selector.engine import Selector

    original = Selector.choose_each

    def choose_each(self, queries):
        found = original(self, queries)
        return [item if isinstance(item, Exception) else replace(item, device=device) for item in found]

    return choose_each


def test_wrong_questions_raise(trained):
    with pytest.raises(UnknownDevice):
        throughputs(trained, [job(batch=8)], ["nonesuch"])
    with pytest.raises(UnknownHyperparameter):
        throughputs(trained, [job(batch=8, hiden=1)], [replay.HERE.key])


def test_placements_rank_and_explain(trained):
    query = Query(hyperparameters={**SIZES, "batch": 8})
    ranked = placements(trained, query, ["nvidia-h200", replay.HERE.key])
    assert [item.rank for item in ranked] == [1, 2]
    assert ranked[0].device.key == replay.HERE.key  # the other one is not known
    assert ranked[1].throughput.feasible is None
    tight = placements(trained, replace(query, memory=1), [replay.HERE.key])
    assert [item.rank for item in tight] == [None]


def test_the_measured_devices(trained, selector_of):
    assert measured_devices(trained) == (replay.HERE.key,)
    assert "nvidia-h200" in measured_devices(selector_of())


def test_csv_has_all_columns():
    text = files.to_csv([row(8, 2.0, items_per_s=4000.0), row(16, None, feasible=False, reason='no, "big"')])
    first, second = csv.DictReader(io.StringIO(text))
    assert first["items_per_s"] == "4000.0"
    assert (second["time_ms"], second["reason"]) == ("", 'no, "big"')


def test_gavel_reads_its_keys_as_python_does():
    found = files.to_gavel([row(64, 2.0), row(128, None, feasible=False), row(None, 4.0)])
    keys = {ast.literal_eval(key): value for key, value in found["nvidia-h200"].items()}
    assert keys[("translate (batch size 64)", 1)] == {"null": 500.0}
    assert keys[("translate (batch size 128)", 1)] == {"null": 0.0}
    assert keys[("translate", 1)] == {"null": 250.0}


def test_sia_is_one_job_in_seconds():
    text = files.to_sia([row(64, 2.0), row(128, None, feasible=False)])
    assert text == "gpu_type,local_bsz,placement,step_time,sync_time\nnvidia-h200,64,1,0.002,0.0\n"
    with pytest.raises(InvalidRequest, match="2 jobs"):
        files.to_sia([row(64, 2.0), row(64, 2.0, job="other")])


@pytest.mark.parametrize(
    ("times_ms", "alpha", "beta"),
    [
        ({8: 9.0, 16: 17.0, 32: 33.0}, 1e-3, 1e-3),
        ({8: 5.0, 16: 4.0}, 4.5e-3, 0.0),  # no slower when larger
        ({8: 1.0, 16: 3.0}, 0.0, 56 / 320 * 1e-3),  # through the origin
    ],
)
def test_adaptdl_gets_a_line(times_ms, alpha, beta):
    hints = files.to_adaptdl([row(batch, time) for batch, time in times_ms.items()])["translate"][
        "nvidia-h200"
    ]
    assert hints["perfParams"]["alpha_c"] == pytest.approx(alpha)
    assert hints["perfParams"]["beta_c"] == pytest.approx(beta)
    assert hints["localBszBounds"] == [min(times_ms), max(times_ms)]
    # the names that petuum/adaptdl accepts in its hints
    assert hints["perfParams"].keys() == {
        f"{name}_{part}" for name in ("alpha", "beta") for part in "cnr"
    } | {"gamma"}


def test_adaptdl_needs_two_points():
    with pytest.raises(InvalidRequest, match="two or more"):
        files.to_adaptdl([row(8, 1.0)])
    with pytest.raises(InvalidRequest, match="nothing to fit"):
        files.to_adaptdl([row(8, None)])


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H200 NVL", "H200"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX6000"),
        ("Tesla V100-SXM2-16GB", "V100"),
    ],
)
def test_what_clusters_call_a_gpu(name, model):
    assert model_name(Device(name=name, kind="cuda")) == model


def ranking(*names, **more):
    from selector.planning import Placement

    return [
        Placement(
            rank=index + 1,
            device=Device(name=name, kind="cpu" if name == "AMD EPYC" else "cuda"),
            throughput=row(8, 2.0**index, items_per_s=8e3 / 2**index, peak_high_bytes=3 * 2**30 + 1, **more),
        )
        for index, name in enumerate(names)
    ]


GPUS = ("NVIDIA H200", "AMD EPYC", "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB")


def test_slurm_and_ray_name_each_kind_once():
    ranked = ranking(*GPUS)
    assert places.to_slurm(ranked) == "h200|a100\n"
    assert places.to_ray(ranked) == {
        "num_gpus": 1,
        "label_selector": {"ray.io/accelerator-type": "H200"},
        "fallback_strategy": [{"label_selector": {"ray.io/accelerator-type": "A100"}}],
    }
    assert "fallback_strategy" not in places.to_ray(ranked[:1])


def test_affinity_prefers_by_speed():
    affinity = places.to_affinity(ranking(*GPUS))["nodeAffinity"]
    required = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]
    assert required["matchExpressions"][0]["values"] == [
        "NVIDIA-H200",
        "NVIDIA-A100-SXM4-80GB",
        "NVIDIA-A100-SXM4-40GB",
    ]
    preferred = affinity["preferredDuringSchedulingIgnoredDuringExecution"]
    assert [item["weight"] for item in preferred] == [100, 25, 12]


def test_a_claim_ranks_and_asks_for_the_memory():
    template = places.to_resource_claim(ranking(*[f"NVIDIA H{number}" for number in range(100, 112)]))
    (request,) = template["spec"]["spec"]["devices"]["requests"]
    first, *others = request["firstAvailable"]
    assert len(others) == 7  # Kubernetes takes eight
    (selector,) = first["selectors"]
    assert 'productName == "NVIDIA H100"' in selector["cel"]["expression"]
    assert 'compareTo(quantity("3073Mi")) >= 0' in selector["cel"]["expression"]
    assert len({item["name"] for item in request["firstAvailable"]}) == 8


@pytest.mark.parametrize(
    "write", [places.to_slurm, places.to_ray, places.to_affinity, places.to_resource_claim]
)
def test_nothing_known_to_fit_is_an_error(write):
    for more in ({"feasible": False}, {"feasible": None}):
        with pytest.raises(NothingFits, match="nvidia-h200"):
            write(ranking("NVIDIA H200", **more))
    with pytest.raises(NothingFits):
        feasible(ranking("AMD EPYC"))


def test_plain_lines():
    (line,) = places.to_plain(ranking("NVIDIA H200", reason="two\nlines\there")).splitlines()
    assert line == "nvidia-h200\t8000\ttwo lines here"
