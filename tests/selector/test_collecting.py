"""A batch is not held up by searches for dead objects, and leaves the process as it was."""

import gc
from threading import Event, Thread

import pytest

from selector import Query
from selector.collecting import SELDOM, collected_seldom


@pytest.fixture
def searches():
    found = []

    def note(phase, info):
        if phase == "start":
            found.append(info["generation"])

    gc.callbacks.append(note)
    yield found
    gc.callbacks.remove(note)


def test_a_batch_meets_no_search(trained, searches):
    asked = [Query(hyperparameters={"hidden": 64 + step, "batch": 9}) for step in range(200)]
    before = gc.get_threshold()
    trained.choose_each(asked[:1])
    gc.collect()
    searches.clear()
    trained.choose_each(asked)
    assert len(searches) <= 2  # before the batch began, and when it was over
    assert gc.get_threshold() == before


def test_the_thresholds_come_back_after_an_error():
    before = gc.get_threshold()

    def fail():
        with collected_seldom():
            assert gc.get_threshold()[0] == SELDOM
            raise ValueError("planted")

    with pytest.raises(ValueError, match="planted"):
        fail()
    assert gc.get_threshold() == before


def test_whoever_turned_collecting_off_finds_it_off():
    before = gc.isenabled()
    gc.disable()
    try:
        with collected_seldom():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        if before:
            gc.enable()


def test_of_blocks_that_overlap_the_first_changes_and_restores():
    before, entered, leave = gc.get_threshold(), Event(), Event()

    def first():
        with collected_seldom():
            entered.set()
            leave.wait(10)

    thread = Thread(target=first)
    thread.start()
    assert entered.wait(10)
    with collected_seldom():
        pass
    assert gc.get_threshold()[0] == SELDOM  # the first block goes on
    leave.set()
    thread.join(10)
    assert gc.get_threshold() == before
