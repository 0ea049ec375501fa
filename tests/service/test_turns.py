"""Turns at the processor: what one token asks anew waits for what it asked before, and for nobody else."""

from __future__ import annotations

import asyncio
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import pytest
from starlette.testclient import TestClient

from kernel_selector.service import tokens
from kernel_selector.service.app import create_app
from kernel_selector.service.routes import turns
from kernel_selector.service.settings import Settings
from selector import Selector

BATCH = {"problems": [{"hyperparameters": {"hidden": 80, "batch": 5}}], "devices": ["h200"]}
JOBS = {"jobs": [{"name": "a", "hyperparameters": {"hidden": 80, "batch": 6}}], "devices": ["h200"]}
LAYER = {"hyperparameters": {"hidden": 80, "batch": 7}, "devices": ["h200"]}


class Busy:
    """How many questions are worked on at once."""

    def __init__(self) -> None:
        self.now = self.most = 0
        self._lock = Lock()

    def slowly(self, work):
        """The same work, which takes a while more and is counted."""

        def counted(*given, **more):
            with self._lock:
                self.now += 1
                self.most = max(self.most, self.now)
            try:
                time.sleep(0.02)
                return work(*given, **more)
            finally:
                with self._lock:
                    self.now -= 1

        return counted


@pytest.fixture
def busy(monkeypatch):
    counter = Busy()
    for name in ("answer", "choose_each"):
        monkeypatch.setattr(Selector, name, counter.slowly(getattr(Selector, name)))
    return counter


def new_questions(client, token, first):
    """Answers to eight questions that nobody asked before, asked at once."""
    headers = {"authorization": f"Bearer {token}"}
    others = [("/v1/choices:batch", BATCH), ("/v1/throughputs", JOBS), ("/v1/placements", LAYER)]
    layers = [{"hyperparameters": {"hidden": first + number, "batch": 3}} for number in range(5)]
    bodies = [*others, *(("/v1/choices", {**layer, "device": "h200"}) for layer in layers)]
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda body: client.post(body[0], json=body[1], headers=headers), bodies))


def test_what_one_token_asks_anew_is_worked_on_one_at_a_time(tmp_path, gpu_database, monkeypatch, busy):
    monkeypatch.setattr(turns, "LONGEST_S", 30.0)  # on a busy machine
    url = str(shutil.copy(gpu_database, tmp_path / "measurements.sqlite"))
    secrets = [tokens.create_token(url, name, scopes=["read"]) for name in ("one", "two")]
    application = create_app(Selector(url), settings=Settings())
    with TestClient(application, base_url="http://127.0.0.1") as client:
        answers = new_questions(client, secrets[0], 100)
        assert ({one.status_code for one in answers}, busy.most) == ({200}, 1)
        with ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda secret: new_questions(client, secret, 200), secrets))
        assert {one.status_code for answers in both for one in answers} == {200}
        assert busy.most == 2


def test_turns_are_taken_in_the_order_of_asking_and_for_each_asker():
    taken = []

    async def ask(queue, asker, number):
        async with queue.of(asker):
            await asyncio.sleep(0.001)
            taken.append((asker, number))

    async def ask_all():
        queue = turns.Turns()
        await asyncio.gather(*(ask(queue, asker, number) for number in range(5) for asker in "ab"))

    asyncio.run(ask_all())
    assert [number for asker, number in taken if asker == "a"] == list(range(5))
    assert {asker for asker, number in taken[:2]} == {"a", "b"}


def test_who_waits_for_a_database_holds_up_nobody(monkeypatch):
    monkeypatch.setattr(turns, "LONGEST_S", 0.01)
    ended = []

    async def ask(queue, wait_s):
        async with queue.of("a"):
            await asyncio.sleep(wait_s)
        ended.append(wait_s)

    async def ask_all():
        queue = turns.Turns()
        await asyncio.gather(ask(queue, 0.2), ask(queue, 0.0))
        async with queue.of("a"):  # nobody has kept the turn, or given back one too many
            assert queue._locks["a"].locked()

    asyncio.run(ask_all())
    assert ended == [0.0, 0.2]


def test_a_turn_ends_with_an_error_too():
    async def ask():
        queue = turns.Turns()
        for _ in range(2):
            with pytest.raises(ValueError, match="none"):
                async with queue.of("a"):
                    raise ValueError("none")

    asyncio.run(ask())
