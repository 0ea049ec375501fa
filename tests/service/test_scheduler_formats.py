"""Throughputs and placements as schedulers read them, and errors where nothing is known to fit."""

import ast
import csv
import io

import pytest

from kernel_selector.kernels.contract import Device
from kernel_selector.service.scheduling import placement_formats as places
from kernel_selector.service.scheduling import throughput_formats as files
from kernel_selector.service.scheduling.placement import Placement, Throughput, feasible
from selector import InvalidRequest, NothingFits


def row(batch, time_ms, **more):
    given = {"feasible": True, "reason": "", "time_ms": time_ms, **more}
    return Throughput(**{"job": "translate", "device": "nvidia-h200", "batch": batch, **given})


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


def ranking(*names, **more):
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
