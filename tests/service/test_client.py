"""`Client.choose` is `Selector.choose` over a network: the same answers, the same errors."""

import http.server
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernel_selector.kernels.contract import (
    InvalidHyperparameter,
    UnknownDevice,
    UnknownHyperparameter,
    UnknownImplementation,
    UnknownOperator,
)
from kernel_selector.service import tokens
from selector import Choice, Client, InvalidRequest, NothingFits, ServiceError
from selector.errors import ServiceUnavailable
from tests.service.conftest import measured_records

ROOT = Path(__file__).parents[2]
SIZES = {"hidden": 256, "batch": 32}


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.fixture(scope="module")
def own_file(database_file, tmp_path_factory):
    """A copy that nothing else reads in this process, which would give up SQLite's locks by that."""
    path = tmp_path_factory.mktemp("client") / "measured.sqlite"
    shutil.copy(database_file, path)
    return path


@pytest.fixture(scope="module")
def service(own_file):
    """The URL of a service in a process of its own."""
    url = f"http://127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "kernel_selector.service.cli", "serve", "--port", url.rsplit(":", 1)[1]]
    environment = {**os.environ, "SELECTOR_ACCESS_LOG": "false"}
    process = subprocess.Popen(
        [*command, "--database", str(own_file)], cwd=ROOT, env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout
    process.stdout.readline()  # printed once questions are answered
    yield url
    process.terminate()
    process.communicate(timeout=300)


@pytest.fixture
def remote(service):
    with Client(service) as client:
        yield client


@pytest.mark.parametrize(
    ("operator", "given"),
    [
        ("lstm", {**SIZES, "device": "cpu", "memory": "1GiB"}),
        (None, SIZES),
        ("gru", {"hidden": 33, "batch": 1, "objective": "memory", "device": "h200"}),
        ("lstm", {**SIZES, "override": "torch_lstm", "dropout": 0.25, "layers": 2}),
        ("lstm", {**SIZES, "among": ("hoisted", "torch_lstm")}),
        ("lstm", {**SIZES, "regime": "compiled"}),
    ],
)
def test_the_same_answer(remote, selector, operator, given):
    assert remote.choose(operator, **given) == replace(selector.choose(operator, **given), torch_device=None)


def test_the_answer_explains_and_builds(remote):
    choice = remote.choose("lstm", **SIZES, device="cpu")
    assert "torch_lstm" in choice.explain()
    assert choice.build().training


@pytest.mark.parametrize(
    ("operator", "given", "error"),
    [
        ("lstmm", SIZES, UnknownOperator),
        ("lstm", {"hiden": 1, "batch": 1}, UnknownHyperparameter),
        ("lstm", {"hidden": 0, "batch": 1}, InvalidHyperparameter),
        ("lstm", {**SIZES, "device": "nonesuch"}, UnknownDevice),
        ("lstm", {**SIZES, "override": "nonesuch"}, UnknownImplementation),
        ("lstm", {**SIZES, "among": ["nonesuch"]}, UnknownImplementation),
        ("lstm", {**SIZES, "among": "hoisted"}, InvalidRequest),
        ("lstm", {**SIZES, "among": 3}, InvalidRequest),
        ("lstm", {**SIZES, "memory": 1}, NothingFits),
        ("lstm", {**SIZES, "objective": "fast"}, InvalidRequest),
        ("lstm", {**SIZES, "regime": "graph"}, InvalidRequest),
    ],
)
def test_the_same_errors(remote, selector, operator, given, error):
    with pytest.raises(error) as here:
        selector.choose(operator, **given)
    with pytest.raises(error) as there:
        remote.choose(operator, **given)
    assert type(there.value) is type(here.value)
    if error is not InvalidRequest:  # the service looks at words like these before the selector does
        assert str(there.value) == str(here.value)


def test_numbers_of_numpy_are_those_of_python(remote):
    given = {"hidden": np.int64(64), "batch": np.int32(8), "bias": np.bool_(True), "dropout": np.float32(0.1)}
    assert remote.choose("lstm", device="cpu", **given).problem["dropout"] == 0.1


def test_what_is_no_json(remote):
    for value in (float("nan"), object(), {1, 2}):
        with pytest.raises(InvalidRequest, match="cannot be written as JSON"):
            remote.choose("lstm", hidden=value, batch=1)


def test_a_device_by_its_key(remote, selector):
    device = selector.device("h200")
    assert remote.choose("lstm", **SIZES, device=device).device.key == device.key


def test_measurements_with_a_token(service, own_file):
    records = list(measured_records())[:2]
    with Client(service) as anonymous, pytest.raises(ServiceError, match="401"):
        anonymous.send(records)
    secret = tokens.create_token(own_file, "client-test", scopes=["measure"])
    time.sleep(2 * tokens.LOOK_S)
    with Client(service, token=secret) as client:
        found = client.send(records)
        assert found["received"] == 2
        assert found["added"] == 0
        with pytest.raises(ServiceError, match="403"):
            client.choose("lstm", **SIZES)


def test_threads_share_a_client(remote):
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(remote.choose("lstm", **SIZES))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({choice.implementation for choice in found}) == 1


def test_nobody_there():
    with pytest.raises(ServiceError, match="cannot be asked"):
        Client(f"http://127.0.0.1:{free_port()}").choose("lstm", **SIZES)


@pytest.mark.parametrize(
    "url",
    [
        *("", "127.0.0.1:8000", "ftp://x", "http://", "file:///etc/passwd", 5),
        *(
            "http://x:99999",
            "http://x:y",
            "http://[::1",
            "http://x/\u00e9",
            "http://x y",
            f"http://{'a' * 64}.x",
            "http://x/?format=csv",
            "http://x/#part",
        ),
    ],
)
def test_urls_that_are_none(url):
    with pytest.raises(InvalidRequest, match="url="):
        Client(url)


@pytest.mark.parametrize("token", ["ks_secret\n", "ks_secret\u00e9", "ks_ secret", 5], ids=ascii)
def test_tokens_that_no_header_has_are_not_shown(token):
    with pytest.raises(InvalidRequest, match="token") as caught:
        Client(token=token)
    assert "secret" not in str(caught.value)


def test_a_password_in_a_url_is_not_shown():
    with pytest.raises(InvalidRequest, match="token=") as caught:
        Client("http://me:secret@127.0.0.1:8000")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("timeout_s", [0, -1.0, float("nan"), float("inf"), "5"])
def test_times_that_nobody_can_wait(timeout_s):
    with pytest.raises(InvalidRequest, match="timeout_s="):
        Client(timeout_s=timeout_s)


class Odd(http.server.BaseHTTPRequestHandler):
    """Answers with what no service of ours says."""

    answer: tuple[int, bytes] = (200, b"")

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        status, body = self.answer
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.mark.parametrize(
    ("answer", "error"),
    [((200, body), ServiceError) for body in (b"<html>", b"{}", b"[]", b"[" * 100_000)]
    + [((404, b'{"a": 1}'), ServiceError)]
    # of a proxy whose service restarts: a worker waits, and its records with it
    + [((code, b"<html>"), ServiceUnavailable) for code in (429, 502, 503, 504)]
    + [((500, b"[1]"), ServiceUnavailable)],
)
def test_other_servers(monkeypatch, answer, error):
    monkeypatch.setattr(Odd, "answer", answer)
    server = http.server.HTTPServer(("127.0.0.1", 0), Odd)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with Client(f"http://127.0.0.1:{server.server_port}") as client, pytest.raises(error):
            client.choose("lstm", **SIZES)
    finally:
        server.shutdown()
        server.server_close()


def test_a_connection_that_was_closed_is_opened_again(remote):
    first = remote.choose("lstm", **SIZES)
    remote._idle[0].sock.shutdown(socket.SHUT_RDWR)
    assert remote.choose("lstm", **SIZES) == first
    assert isinstance(first, Choice)
