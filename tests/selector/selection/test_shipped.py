"""A fresh install answers about devices that it has never seen, from the measurements that come with it."""

from __future__ import annotations

import lzma
import os
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import selector
from kernel_selector.db import Database, models, records
from kernel_selector.kernels import registry
from kernel_selector.kernels.contract import Device, Status, UnknownDevice
from selector import Choice, InvalidRequest, NothingFits, Selector
from selector.selection import shipped
from selector.selection.answer import USED
from selector.selection.evidence import OTHER_MACHINE
from selector.selection.knowledge import UNUSABLE, shipped_body
from selector.selection.query import Query
from selector.selection.selector import ABSENT
from selector.workloads.sampling import random_problems
from tests.selector import replay

QUESTION = {"hidden": 1024, "batch": 16, "seq": 50, "dtype": "bfloat16"}


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user who has just installed the package, and asked once: what ships is unpacked."""
    request.getfixturevalue("shipped_cache")
    monkeypatch.delenv("SELECTOR_DATABASE_URL")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path


def test_what_was_measured_on_an_h200_is_answered_without_one(fresh: Path) -> None:
    choice = selector.choose("lstm", **QUESTION, device="h200")
    assert choice.source == "exact"
    assert choice.implementation != "torch_lstm"
    assert USED in choice.caveats
    assert not list((fresh / "data").rglob("*.sqlite"))
    (one,) = Selector().choose_each([Query(operator="lstm", hyperparameters=QUESTION, device="h200")])
    assert one == choice


def test_that_there_are_no_measurements_is_said_only_where_none_ship() -> None:
    missing = "There are no measurements yet."
    assert not [caveat for caveat in Selector().status()["caveats"] if missing in caveat]
    assert [caveat for caveat in Selector(shipped=False).status()["caveats"] if missing in caveat]


def test_a_named_database_that_is_not_there_is_said_with_each_answer(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SELECTOR_DATABASE_URL", str(fresh / "misspelt.sqlite"))
    (said,) = [one for one in selector.choose("lstm", **QUESTION, device="h200").caveats if ABSENT in one]
    assert str(fresh / "misspelt.sqlite") in said
    Database.open(create=True).close()
    assert not [one for one in Selector().choose("lstm", **QUESTION, device="h200").caveats if ABSENT in one]


@pytest.mark.parametrize("slower", [0.5, 1.2, 1.8])
def test_another_host_changes_what_launches_cost_and_nothing_else(slower: float) -> None:
    """The cost model has seen two hosts, of an H200 and of an H100, and cannot tell them from the cards."""
    (h200,) = [one for one in shipped_body().devices if one.key == "nvidia-h200"]
    assert h200.launch_us is not None
    there = replace(h200, host="Another processor", launch_us=slower * h200.launch_us)
    head = {"rows": 4096, "hidden": 1024, "vocabulary": 50257, "bias": False}
    norm = {"rows": 370, "hidden": 328}
    for operator, values in (("linear_cross_entropy", head), ("rms_norm", norm)):
        asked = {**values, "dtype": "bfloat16", "mode": "training"}
        here, other = (selector.choose(operator, **asked, device=one) for one in (h200, there))
        assert other.source == here.source == "model"
        assert any("learned from host" in caveat for caveat in other.caveats)
        assert not any("learned from host" in caveat for caveat in here.caveats)
        times = {one.name: one.time_ms for one in here.candidates if one.time_ms is not None}
        for one in other.candidates:
            if one.time_ms is None:
                assert one.name not in times
            elif operator == "rms_norm" and slower > 1:
                assert one.time_ms == pytest.approx(slower * times[one.name], rel=0.1)
            elif operator == "linear_cross_entropy" and one.name in ("aligned", "torch_compile"):
                assert one.time_ms == times[one.name]
            else:
                assert min(1, slower) - 1e-9 <= one.time_ms / times[one.name] <= max(1, slower) + 1e-9


@pytest.mark.parametrize("operator", ["lstm", "attention", "linear", "layer_norm"])
def test_a_large_batch_is_answered_to_the_last_digit_as_each_alone(operator: str) -> None:
    drawn = random_problems(operator, "cuda", count=40, seed=11)
    asked = [Query(operator=operator, hyperparameters=one.as_dict, device="h200") for one in drawn]
    together, alone = Selector(shipped.unpacked(), shipped=False), Selector(shipped.unpacked(), shipped=False)
    found = together.choose_each(asked)
    assert any(one.source == "model" for one in found if isinstance(one, Choice))
    for query, choice in zip(asked, found, strict=True):
        assert isinstance(choice, Choice)
        assert choice.to_dict() == alone.answer(query).to_dict()


@pytest.mark.parametrize("operator", ["layer_norm", "dropout_add_norm"])
def test_an_epsilon_changes_neither_time_nor_bytes(operator: str) -> None:
    """Hugging Face's BERT has 1e-12, and the operators 1e-5."""
    given = {"rows": 8192, "hidden": 1024, "dtype": "bfloat16", "device": "h200"}
    usual, theirs = selector.choose(operator, **given), selector.choose(operator, eps=1e-12, **given)
    assert theirs.source == usual.source == "exact"
    assert (theirs.implementation, theirs.time_ms) == (usual.implementation, usual.time_ms)
    assert (theirs.problem["eps"], usual.problem["eps"]) == (1e-12, 1e-5)


@pytest.mark.parametrize("operator", registry.operators())
def test_every_operator_has_records_and_a_cost_model_of_this_version(operator: str) -> None:
    with Database.open(shipped.unpacked()) as database, database.read() as connection:
        assert models.latest(connection, operator=operator) is not None
    evidence = Selector(shipped.unpacked(), shipped=False).evidence(operator, "nvidia-h200")
    measured = {name for groups in evidence.groups.values() for group in groups.values() for name in group}
    assert measured <= set(registry.implementations(operator))
    assert registry.operator(operator).default in measured


RATES: dict[str, Any] = {"copy_bytes_per_s": 1e10, "matmul_flops_per_s": {"float32": 1e11}, "launch_us": 2.0}
SMALL: dict[str, Any] = {"hidden": 128, "batch": 8, "seq": 16}  # as random problems of processors are


@pytest.mark.parametrize("operator", registry.operators())
def test_every_operator_was_measured_on_a_processor(operator: str) -> None:
    evidence = Selector(shipped.unpacked(), shipped=False).evidence(operator, shipped.CPU)
    assert len(evidence.problems) >= 20


def test_a_processor_that_was_never_measured_gets_the_answers_of_the_one_that_ships() -> None:
    alone = Selector(shipped.unpacked(), shipped=False)
    with alone.database.read() as connection:  # by its name it may be this machine, with rates of its own
        (theirs,) = (one for one in records.devices(connection) if one.key == shipped.CPU)
    known = alone.choose("lstm", **SMALL, device=theirs)
    assert known.source == "model"
    assert not [caveat for caveat in known.caveats if "another processor" in caveat]
    other = Device(name="Some Other CPU", kind="cpu", host="Some Other CPU x8", **RATES)
    choice = selector.choose("lstm", **SMALL, device=other)
    times = {one.name: one.time_ms for one in known.candidates}
    assert {one.name: one.time_ms for one in choice.candidates} == times
    gain = times["torch_lstm"] / times[known.implementation] - 1
    chosen = known.implementation if gain > OTHER_MACHINE else "torch_lstm"
    assert (choice.source, choice.implementation) == (known.source, chosen)
    assert choice.device == other
    assert [caveat for caveat in choice.caveats if "on another processor, AMD EPYC" in caveat]


def test_the_processor_that_ships_is_known_by_its_name() -> None:
    known = Selector(shipped.unpacked(), shipped=False).choose("lstm", **SMALL, device=shipped.CPU)
    choice = selector.choose("lstm", **SMALL, device=shipped.CPU)
    (one,) = Selector().choose_each([Query(operator="lstm", hyperparameters=SMALL, device="AMD EPYC")])
    assert isinstance(one, Choice)
    assert choice.implementation == one.implementation == known.implementation
    assert choice.device == known.device
    assert USED in choice.caveats


def test_a_device_that_nobody_knows_is_refused_with_all_known_names() -> None:
    with pytest.raises(UnknownDevice, match=shipped.CPU):
        selector.choose("lstm", **SMALL, device="no-such-processor")


def test_ones_own_measurements_of_a_processor_come_first() -> None:
    other = Device(name="Some Other CPU", kind="cpu", host="Some Other CPU x8", **RATES)
    problem = registry.operator("lstm").problem(SMALL)
    own = [
        replace(record, problem=problem, device=other)
        for record in replay.sweep([problem])
        if record.status is Status.OK
    ]
    with Database.open(create=True) as database, database.write() as connection:
        records.add(connection, own)
    choice = Selector().choose("lstm", **SMALL, device=other)
    fastest = min(own, key=lambda record: record.total.undisturbed_ms if record.total else 1e9)
    assert (choice.source, choice.implementation) == ("exact", fastest.implementation)
    assert USED not in choice.caveats


def test_a_limit_that_nothing_keeps_is_refused_as_by_ones_own_measurements() -> None:
    with pytest.raises(NothingFits, match="the least is"):
        selector.choose("lstm", **QUESTION, device="h200", memory="1MiB")
    query = Query(operator="lstm", hyperparameters=QUESTION, device="h200", memory="1MiB")
    (one,) = Selector().choose_each([query])
    assert isinstance(one, NothingFits)


def test_what_ships_adds_to_a_database_that_was_named(fresh: Path) -> None:
    Database.open(fresh / "own.sqlite", create=True).close()
    choice = selector.choose("lstm", **QUESTION, device="h200", database=fresh / "own.sqlite")
    assert choice.source == "exact"
    assert USED in choice.caveats


def test_what_ships_can_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    known, alone = Selector(), Selector(shipped=False)
    assert alone.choose("lstm", **QUESTION, device="h200").source == "default"
    assert known.choose("lstm", **QUESTION, device="h200").source == "exact"
    monkeypatch.setenv("SELECTOR_SHIPPED", "off")
    assert selector.choose("lstm", **QUESTION, device="h200").source == "default"
    monkeypatch.setenv("SELECTOR_SHIPPED", "perhaps")
    with pytest.raises(InvalidRequest, match="SELECTOR_SHIPPED='perhaps': expected on or off"):
        Selector()


def test_what_the_shipped_measurements_do_not_know_either_is_the_default() -> None:
    choice = selector.choose("lstm", **QUESTION, device=Device(name="Unheard-of GPU", kind="cuda"))
    assert choice.source == "default"
    assert any("Nothing comparable was measured on Unheard-of GPU" in caveat for caveat in choice.caveats)
    assert not [caveat for caveat in choice.caveats if caveat.startswith(UNUSABLE)]


def test_where_nothing_can_be_unpacked_the_choice_says_so(
    fresh: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(fresh / "cache")
    (fresh / "cache").write_text("a file in the way")
    monkeypatch.setattr(tempfile, "tempdir", str(fresh / "cache"))
    choice = selector.choose("lstm", **QUESTION, device="h200")
    assert choice.source == "default"
    assert [caveat for caveat in choice.caveats if caveat.startswith(UNUSABLE)]


def test_they_are_small() -> None:
    assert shipped.PACKED.stat().st_size < 30e6


def test_the_readme_says_how_many_there_are() -> None:
    with Database.open(shipped.unpacked()) as database, database.read() as connection:
        counts: Counter[str] = Counter()
        for row in records.counts(connection):
            counts[row["device"]] += row["count"]
    readme = (Path(__file__).parents[3] / "README.md").read_text()
    for name, device in (("NVIDIA H200", "NVIDIA H200"), ("NVIDIA H100", "NVIDIA H100 80GB HBM3")):
        assert f"{counts[device]:,} measurements of an {name}" in readme


def test_a_few_of_ones_own_measurements_of_a_gpu_hide_nothing_that_is_carried_over_to_it(fresh: Path) -> None:
    without = selector.choose("lstm", **QUESTION, device="a100")
    assert without.source == "transfer"
    problem = registry.operator("lstm").problem({**QUESTION, "hidden": 32})
    one = replay.record(problem, "torch_lstm", time_ms=1.0, device=without.device)
    with Database.open(fresh / "own.sqlite", create=True) as database:
        with database.write() as connection:
            records.add(connection, [one])
        choice = Selector(database).choose("lstm", **QUESTION, device="a100")
    assert (choice.source, choice.implementation) == ("transfer", without.implementation)
    assert USED in choice.caveats


def test_what_a_killed_process_left_half_unpacked_is_removed_and_what_another_unpacks_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    Database.open(tmp_path / "own.sqlite", create=True).close()
    (tmp_path / "packed").write_bytes(lzma.compress((tmp_path / "own.sqlite").read_bytes(), preset=0))
    monkeypatch.setattr(shipped, "PACKED", tmp_path / "packed")
    path = shipped.unpacked()
    path.unlink()
    left, new = path.with_name("shipped-left.part"), path.with_name("shipped-new.part")
    for part in (left, new):
        part.touch()
    os.utime(left, (0, 0))
    kept = path.with_name("shipped-kept.part")  # is as good as another user's: it cannot be removed
    kept.mkdir()
    os.utime(kept, (0, 0))
    assert shipped.unpacked() == path
    assert {one.name for one in path.parent.iterdir()} == {path.name, new.name, kept.name}


def test_what_ships_is_unpacked_into_a_temporary_folder_where_no_cache_can_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    Database.open(tmp_path / "own.sqlite", create=True).close()
    (tmp_path / "packed").write_bytes(lzma.compress((tmp_path / "own.sqlite").read_bytes(), preset=0))
    monkeypatch.setattr(shipped, "PACKED", tmp_path / "packed")
    with pytest.warns(UserWarning, match="Set XDG_CACHE_HOME to a folder that can be written"):
        path = shipped.unpacked()
    folder = tmp_path / f"kernel-selector-{os.getuid()}"
    assert (path.parent, folder.stat().st_mode & 0o777) == (folder, 0o700)
    folder.chmod(0o777)  # others may have put in it what they want
    with pytest.raises(OSError, match="file"):
        shipped.unpacked()
