"""Bad arguments: one clear error each, which names the value and the way out."""

import sqlite3

import pytest

from kernel_selector.db import DatabaseCorrupt, DatabaseMissing
from kernel_selector.kernels.contract import (
    AmbiguousHyperparameter,
    InvalidHyperparameter,
    SelectorError,
    UnknownDevice,
    UnknownHyperparameter,
    UnknownImplementation,
    UnknownOperator,
)
from selector import InvalidRequest, NoMeasurements, Selector, choose, evaluate, parse_bytes, train
from tests.selector import replay

BAD_HYPERPARAMETERS = [
    ({"hidden": 0}, InvalidHyperparameter, "hidden=0"),
    ({"hidden": -1}, InvalidHyperparameter, "hidden=-1"),
    ({"hidden": 1.5}, InvalidHyperparameter, "hidden=1.5"),
    ({"hidden": "512"}, InvalidHyperparameter, "hidden='512'"),
    ({"hidden": True}, InvalidHyperparameter, "hidden=True"),
    ({"hidden": 10**12}, InvalidHyperparameter, "hidden=1000000000000"),
    ({"hidden": [64]}, InvalidHyperparameter, "hidden="),
    ({"hidden": None}, InvalidHyperparameter, "hidden=None"),
    ({"hidden": 64, "hiden": 64}, UnknownHyperparameter, "Did you mean 'hidden'"),
    ({"hidden": 64, "dtype": "float31"}, InvalidHyperparameter, "float31"),
    ({"hidden": 64, "hidden_size": 128}, AmbiguousHyperparameter, "hidden_size=128"),
    ({}, InvalidHyperparameter, "needs hidden"),
]


@pytest.mark.parametrize(("given", "error", "words"), BAD_HYPERPARAMETERS)
def test_hyperparameters(selector_of, given, error, words):
    selector = selector_of()
    selector.choose(hidden=1, batch=8)  # 1 == True and 64 == 64.0: a cached answer must not hide the slip
    with pytest.raises(error, match=words.replace("[", r"\[")):
        selector.choose(**{"batch": 8, **given})


def test_float_that_equals_a_cached_integer_is_refused(selector_of):
    selector = selector_of()
    selector.choose(hidden=64, batch=8)
    with pytest.raises(InvalidHyperparameter, match=r"hidden=64\.0"):
        selector.choose(hidden=64.0, batch=8)


@pytest.mark.parametrize("name", ["lstmm", "", 3])
def test_operator(selector_of, name):
    with pytest.raises(UnknownOperator, match="lstm"):
        selector_of().choose(name, hidden=64, batch=8)


@pytest.mark.parametrize(
    ("device", "error"),
    [("h2000x", UnknownDevice), ("cuda:99", UnknownDevice), ("", UnknownDevice), (7, InvalidRequest)],
)
def test_device(selector_of, device, error):
    with pytest.raises(error, match=r"cpu"):
        selector_of().choose(hidden=64, batch=8, device=device)


@pytest.mark.parametrize("memory", ["1XiB", "", "GiB", "-1", "1e9", -1, 0, "0", True, False, 1.5, [1]])
def test_memory(selector_of, memory):
    with pytest.raises(InvalidRequest, match="expected a positive number of bytes"):
        selector_of().choose(hidden=64, batch=8, memory=memory)


def test_objective(selector_of):
    with pytest.raises(InvalidRequest, match=r"objective='energy'.*time, memory"):
        selector_of().choose(hidden=64, batch=8, objective="energy")


def test_override(selector_of):
    with pytest.raises(UnknownImplementation, match="torch_lstm"):
        selector_of().choose(hidden=64, batch=8, override="torch_lstn")


def type_name(value: object) -> str:
    return type(value).__name__


@pytest.mark.parametrize("memory", [10**5000, "9" * 400, "9" * 5000 + "GiB", 2**63], ids=type_name)
def test_a_limit_beyond_all_memory_limits_nothing(selector_of, memory):
    assert selector_of().choose(hidden=64, batch=8, memory=memory).memory_limit_bytes == 2**63 - 1


@pytest.mark.parametrize("name", ["memory", "objective", "override", "device"])
def test_long_values_are_shortened_in_messages(selector_of, name):
    for value in ("x" * 5000, 10**5000 if name != "memory" else -(10**5000)):
        with pytest.raises(SelectorError) as caught:
            selector_of().choose(hidden=64, batch=8, **{name: value})
        assert "0000" * 20 not in str(caught.value)
        assert "x" * 80 not in str(caught.value)


@pytest.mark.parametrize("use", [lambda it: choose(hidden=64, batch=8, database=it), Selector, parse_bytes])
@pytest.mark.parametrize("value", ["", [1], b"x", {"a": 1}])
def test_what_cannot_be_one_is_refused(use, value):
    with pytest.raises(InvalidRequest, match="expected"):
        use(value)


@pytest.mark.parametrize("learn", [train, evaluate])
@pytest.mark.parametrize("database", [5, "", "x" * 5000])
def test_what_cannot_be_a_database(learn, database):
    with pytest.raises(InvalidRequest, match="database="):
        learn(database=database)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rtx", "nvidia-rtx-a6000"),
        ("80GB", "nvidia-a100-80gb-pcie"),
        ("mi300x", "'mi300x' is an AMD GPU: only NVIDIA GPUs and CPUs"),
        ("h2000", "Did you mean 'nvidia-h200'"),
        ("rtx409", "Did you mean 'nvidia-geforce-rtx-4090'"),
        ("replay-cpu-9", "Did you mean 'replay-cpu-8'"),
    ],
)
def test_devices_that_could_be_meant(selector_of, name, words):
    selector = selector_of(replay.sweep(list(replay.problems())[:1]))
    with pytest.raises(UnknownDevice, match=words):
        selector.choose(hidden=64, batch=8, device=name)


@pytest.mark.usefixtures("here")
def test_an_answer_names_the_variant_that_a_short_name_was_taken_for(selector_of):
    choice = selector_of().choose(hidden=64, batch=8, device="a100")
    assert choice.device.key == "nvidia-a100-sxm4-80gb"
    assert "a100: taken as NVIDIA A100-SXM4-80GB." in choice.caveats


@pytest.mark.usefixtures("here")
def test_named_database_that_is_missing(tmp_path):
    with pytest.raises(DatabaseMissing):
        choose(hidden=64, batch=8, database=tmp_path / "none.sqlite")


@pytest.mark.usefixtures("here")
def test_corrupt_database(tmp_path):
    path = tmp_path / "text.sqlite"
    path.write_text("this is not a database " * 100)
    with pytest.raises(DatabaseCorrupt):
        Selector(path)


@pytest.mark.usefixtures("here")
def test_foreign_database(tmp_path):
    path = tmp_path / "foreign.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE notes (text)")
    connection.close()
    with pytest.raises(SelectorError):
        Selector(path)


@pytest.mark.parametrize("learn", [train, evaluate])
def test_empty_database_teaches_nothing(sqlite_database, learn):
    with pytest.raises(NoMeasurements, match=r"0 measured problems.*selector quickstart"):
        learn(database=sqlite_database)


@pytest.mark.parametrize(
    ("text", "number"),
    [("1GiB", 2**30), ("512MB", 512 * 10**6), ("1.5 KiB", 1536), ("4096", 4096), ("2gib", 2**31), (17, 17)],
)
def test_parse_bytes(text, number):
    assert parse_bytes(text) == number
