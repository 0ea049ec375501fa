"""Whether a model fits into a device, with the peak by kind; plans on devices without measurements."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

import selector
from kernel_selector.db import Database, records
from kernel_selector.kernels.devices import known_devices
from kernel_selector.service.cli import main
from selector import InvalidRequest
from selector.planning.fits import Fit
from selector.planning.layer_costs import BYTES_ELSEWHERE
from selector.planning.training_setup import Training
from tests.selector.planning.test_plan import CHARACTERS, MIB, MODEL, ROWS, measured

H200, A100 = (known_devices()[key] for key in ("nvidia-h200", "nvidia-a100-sxm4-40gb"))
ORIGIN = replace(H200, host="There", launch_us=5.0)
PLAIN = Training(optimizer="sgd", recompute=False)


@pytest.fixture
def database(sqlite_database: Database) -> Database:
    """Of two implementations at two numbers of rows, on a GPU."""
    found = [replace(measured(name, rows), device=ORIGIN) for name in CHARACTERS for rows in (ROWS, 4 * ROWS)]
    with sqlite_database.write() as connection:
        records.add(connection, found)
    return sqlite_database


def fits(database: Database, device: object = "a100-40gb", **more: Any) -> Fit:
    return selector.fits(MODEL, device, training=PLAIN, database=database, shipped=False, **more)


def test_bytes_of_a_device_without_measurements_are_those_of_a_measured_one_and_a_little_more(
    database: Database,
) -> None:
    there, here = (fits(database, device) for device in ("h200", "a100-40gb"))
    assert there
    assert here
    assert here.memory["activations"] == pytest.approx(
        BYTES_ELSEWHERE * there.memory["activations"], rel=1e-3
    )
    plan = selector.plan(MODEL, "a100-40gb", batch=1, training=PLAIN, database=database, shipped=False)
    assert {one.source for one in plan.layers} == {"transfer"}
    assert any("measured on NVIDIA H200" in caveat for caveat in plan.caveats)
    own = selector.plan(MODEL, "h200", batch=1, training=PLAIN, database=database, shipped=False)
    assert own.device_ms < plan.device_ms < 5 * own.device_ms


@pytest.mark.parametrize("reserve", ["5%", 0.05, "2GiB", 2 * 2**30])
def test_what_fits_and_what_does_not(database: Database, reserve: object) -> None:
    yes = fits(database, reserve=reserve)
    assert yes
    assert yes.peak_bytes == sum(yes.memory.values()) <= yes.memory_bytes - yes.reserve_bytes
    assert yes.reserve_bytes == 2 * 2**30
    assert yes.headline.startswith("yes: ten layers fits into NVIDIA A100-SXM4-40GB, batch 1 takes")
    assert yes.own_peak_bytes == yes.peak_bytes
    no = fits(database, batch=10_000, reserve=reserve)
    assert not no
    assert no.peak_bytes > no.memory_bytes
    assert no.headline.startswith("no: ")
    assert "does not fit into" in no.reason
    assert json.loads(json.dumps(no.to_dict()))["fits"] is False


def test_a_plan_fits_into_another_device_or_says_what_refuses_or_is_too_large(database: Database) -> None:
    plan = selector.plan(MODEL, "h200", "60GiB", training=PLAIN, database=database, shipped=False)
    assert selector.fits(plan, database=database, shipped=False)
    no = selector.fits(plan, "a100-40gb", database=database, shipped=False)
    assert not no
    assert "more than that" in no.reason
    layer = replace(plan.layers[0], operator="lstm", implementation="persistent")
    layer = replace(layer, hyperparameters={"hidden": 1024, "batch": 16, "dtype": "bfloat16"})
    refused = selector.fits(replace(plan, layers=(layer,)), "a100-40gb", database=database, shipped=False)
    assert "lstm.persistent refuses NVIDIA A100-SXM4-40GB" in refused.reason


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"reserve": "5"}, None),
        ({"reserve": "half"}, "reserve='half'"),
        ({"reserve": "x%"}, "expected a share"),
        ({"reserve": 1.0}, "expected a share"),
        ({"reserve": "41GiB"}, "less than the 40 GiB"),
        ({"reserve": True}, "expected a share"),
        ({"batch": 0}, "batch"),
        ({"batch": "auto"}, "selector.plan"),
        ({"device": "mi300x"}, "AMD"),
    ],
)
def test_bad_questions(database: Database, more: dict[str, Any], words: str | None) -> None:
    if words is None:
        assert fits(database, **more).reserve_bytes == 5
        return
    with pytest.raises((InvalidRequest, selector.UnknownDevice), match=words):
        fits(database, **more)


def test_a_plan_has_a_batch_of_its_own(database: Database) -> None:
    plan = selector.plan(MODEL, "h200", batch=2, training=PLAIN, database=database, shipped=False)
    with pytest.raises(InvalidRequest, match="the plan has batch 2"):
        selector.fits(plan, batch=3, database=database)


def test_the_command(sqlite_database: Database, capsys: pytest.CaptureFixture[str]) -> None:
    model = ["lstm-language-model", "hidden=64", "vocabulary=100", "seq=20", "dtype=float32"]
    where = ["--device", "cpu", "--database", sqlite_database.location, "--no-shipped"]
    asked = ["fits", *model, "--batch", "4", *where]
    assert main(asked) == 0
    assert "yes: lstm-language-model fits into" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["peak_bytes"] > MIB / 4
    assert main([*asked, "--reserve", "all"]) == 2
