"""Databases that hold what no version of ours wrote: impossible problems and damaged models."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import text

from kernel_selector.db import Database
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Problem, Record
from kernel_selector.service.cli.diagnostics import examine
from selector import Selector
from selector.cost_model.stored_models import latest_model, usable_model
from selector.selection import devices
from selector.selection.evidence import Evidence
from selector.training.dataset import build_dataset
from tests.selector import replay

VERSIONS = {name: item.version for name, item in registry.implementations("lstm").items()}


def impossible(name: str, value: object) -> Record:
    problem = next(replay.problems(hidden=(64,), batch=(8,)))
    values = tuple({**problem.as_dict, name: value}.items())
    return replace(replay.record(problem, "hoisted"), problem=Problem("lstm", values))


IMPOSSIBLE = [("hidden", "512"), ("hidden", -5), ("hiden", 64), ("mode", "sleeping"), ("hidden", [64])]


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_impossible_records_are_no_evidence(name: str, value: object) -> None:
    problem = next(replay.problems(hidden=(64,), batch=(8,)))
    evidence = Evidence([impossible(name, value), replay.record(problem, "hoisted")], VERSIONS)
    assert evidence.left_out.total() == 1
    assert [problem.key] == list(evidence.problems)


@pytest.mark.parametrize(("name", "value"), IMPOSSIBLE)
def test_impossible_records_are_not_learned_from(name: str, value: object) -> None:
    found = replay.sweep(replay.problems(seq=(10,), layers=(1,)))
    dataset = build_dataset(registry.operator("lstm"), [impossible(name, value), *found], [replay.HERE])
    assert len(dataset.records) == len(found)
    assert dataset.left_out == {"of hyperparameters that are not possible": 1}


def test_a_choice_says_what_was_left_out(selector_of, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = next(replay.problems(hidden=(64,), batch=(8,)))
    selector = selector_of(replay.sweep([problem]))
    monkeypatch.setattr(registry, "is_valid", lambda _: False)
    choice = selector.choose(**problem.as_dict)
    assert choice.source == "default"
    assert any("records are left out" in caveat for caveat in choice.caveats)


def _without(manifest: dict, name: str) -> str:
    return json.dumps({key: value for key, value in manifest.items() if key != name})


DAMAGES: dict[str, tuple[str, Callable[[dict], object]]] = {
    "layout": ("schema", lambda _: 99),
    "cut arrays": ("arrays", lambda _: b"PK"),
    "no JSON": ("manifest", lambda _: "no JSON"),
    "a list": ("manifest", lambda _: "[]"),
    "no errors": ("manifest", lambda manifest: _without(manifest, "errors")),
    "no devices": ("manifest", lambda manifest: _without(manifest, "devices")),
    "other features": ("manifest", lambda manifest: json.dumps({**manifest, "features": ["size"]})),
    "no evaluation": ("evaluation", lambda _: "{"),
}


@pytest.fixture(params=DAMAGES)
def damaged(request: pytest.FixtureRequest, trained_file: Path, tmp_path: Path) -> Path:
    request.getfixturevalue("here")
    path = tmp_path / "damaged.sqlite"
    path.write_bytes(trained_file.read_bytes())
    column, damage = DAMAGES[request.param]
    with Database.open(path) as database, database.write() as connection:
        manifest = latest_model(connection, "lstm").manifest
        connection.execute(text(f"UPDATE model SET {column} = :value"), {"value": damage(manifest)})
    return path


def test_doctor_finds_the_model_broken_that_choose_skips(damaged: Path) -> None:
    unseen = next(replay.problems(hidden=(200,), batch=(24,), seq=(33,)))
    choice = Selector(damaged).choose(**unseen.as_dict)
    assert choice.source != "model"
    assert any("latest cost model is not used" in caveat for caveat in choice.caveats)
    found = [finding for finding in examine(damaged) if finding.name == "model"]
    assert [finding.status for finding in found] == ["broken"]


def test_doctor_is_content_with_a_good_model(trained_file: Path) -> None:
    assert [one.status for one in examine(trained_file) if one.name == "model"] == ["ok"]


def test_a_damaged_model_is_trained_anew_by_quickstart(damaged: Path) -> None:
    with Database.open(damaged) as database, database.read() as connection:
        assert usable_model(connection, "lstm") is None


def test_a_device_that_is_elsewhere_comes_with_a_caveat_about_build(selector_of) -> None:
    choice = selector_of().choose(hidden=64, batch=8, device="h200")
    assert choice.torch_device is None
    assert any("in this machine: build() needs it" in caveat for caveat in choice.caveats)
    assert "build() needs it" in choice.explain()
    here = selector_of().choose(hidden=64, batch=8, device="cpu")
    assert not any("build()" in caveat for caveat in here.caveats)
    assert devices.resolve("h200").torch_device is None
