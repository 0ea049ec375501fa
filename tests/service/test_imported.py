"""An imported operator on the command line and over HTTP: asked about as one of ours."""

from __future__ import annotations

import json

import pytest
from starlette.testclient import TestClient

from kernel_selector.service.app import create_app
from kernel_selector.service.cli import main
from selector import Selector
from tests.selector import foreign

QUESTION = ["m=64", "n=512", "alpha=1", "layout=nn"]


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    """A database into which the command line imported 60 problems, and trained on them."""
    folder = tmp_path_factory.mktemp("imported")
    lines = foreign.write(folder / "a.jsonl", list(foreign.rows(60)))
    path = str(folder / "a.sqlite")
    assert main(["import", str(lines), "--database", path]) == 0
    assert main(["train", foreign.OPERATOR, "--database", path]) == 0
    return path


def document(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_doctor_loads_its_model(database, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the checkout's kernels/ hides Hugging Face's package of that name
    findings = document(capsys, "doctor", "--database", database)["findings"]
    (model,) = (one for one in findings if one["name"] == "model")
    assert (model["status"], model["detail"].split()[0]) == ("ok", foreign.OPERATOR)


def test_the_command_line_answers(database, capsys):
    asked = [foreign.OPERATOR, *QUESTION, "--device", "h200", "--database", database]
    assert document(capsys, "choose", *asked)["problem"]["m"] == 64
    assert main(["choose", *asked]) == 0
    assert ".build()" not in capsys.readouterr().out
    assert "grouped_gemm" in document(capsys, "explain", *asked)["explanation"]
    assert (
        document(capsys, "evaluate", foreign.OPERATOR, "--database", database)["operator"] == foreign.OPERATOR
    )
    assert main(["evaluate", foreign.OPERATOR, "--device", "h200", "--database", database]) == 2
    assert "Leave the device out" in capsys.readouterr().err
    few = document(capsys, "choose", *asked, "--among", "large, medium")
    assert few["implementation"] in ("large", "medium")
    assert main(["choose", *asked, "--among", "large"]) == 0
    assert "among=['large']" in capsys.readouterr().out.replace("\n", "")
    names = [one["name"] for one in document(capsys, "operators", "--database", database)["operators"]]
    assert names[-1] == foreign.OPERATOR


def test_bad_lines_are_told_and_the_exit_code_says_so(database, capsys, tmp_path):
    path = tmp_path / "b.jsonl"
    path.write_text(json.dumps({**next(foreign.rows(1)), "milliseconds": -1}) + "\n")
    assert main(["import", str(path), "--database", database]) == 2
    assert "line 1: milliseconds=-1" in capsys.readouterr().err
    report = document(capsys, "import", str(path), "--database", database, "--keep-going")
    assert (report["bad"], report["added"]) == (1, 0)
    assert main(["import", str(path), "--database", database, "--keep-going"]) == 0
    assert "0 new, 0 known before, 1 bad" in capsys.readouterr().out


def test_files_and_databases_are_exchanged(database, capsys, tmp_path):
    file, other = str(tmp_path / "all.jsonl"), str(tmp_path / "other.sqlite")
    count = document(capsys, "export", file, "--database", database)["measurements"]
    assert document(capsys, "import", file, "--database", other)["added"] == count
    assert not document(capsys, "diff", database, "--database", other)["new"]
    assert document(capsys, "merge", database, "--database", other)["known"] == {foreign.OPERATOR: count}
    assert document(capsys, "promote", database, "--database", other)["models"] == 1
    for command in ("merge", "diff", "promote"):
        assert main([command, file, "--database", other]) == 1
        assert f"`selector import {file} --database {other}`" in capsys.readouterr().err.replace("\n", "")
    assert main(["status", "--database", file]) == 1
    assert f"`selector import {file}`" in capsys.readouterr().err.replace("\n", "")
    assert main(["diff", database, "--database", other]) == 0
    assert foreign.OPERATOR in capsys.readouterr().out


def test_the_service_answers(database):
    with TestClient(create_app(Selector(database)), base_url="http://127.0.0.1") as client:
        listed = {one["name"]: one for one in client.get("/v1/operators").json()}
        assert listed[foreign.OPERATOR]["imported"] is True
        assert listed["lstm"]["imported"] is False
        assert client.get(f"/v1/operators/{foreign.OPERATOR}").json() == listed[foreign.OPERATOR]
        body = {
            "operator": foreign.OPERATOR,
            "device": "h200",
            "hyperparameters": {"m": 64, "n": 500, "alpha": 1, "layout": "nn"},
        }
        answer = client.post("/v1/choices", json=body).json()
        assert (answer["source"], answer["device"]["name"]) == ("model", foreign.DEVICE)
        body["hyperparameters"]["layout"] = "tt"
        assert client.post("/v1/choices", json=body).status_code == 422


@pytest.mark.parametrize("asked", [["{}", "m=64"], ["{}", "--count", "3"], ["--operator", "lstm,{}"]])
def test_an_imported_operator_cannot_be_profiled(database, capsys, asked):
    words = [word.format(foreign.OPERATOR) for word in asked]
    assert main(["profile", *words, "--device", "cpu", "--database", database]) == 2
    error = capsys.readouterr().err
    assert f"{foreign.OPERATOR} is imported: its kernels are elsewhere" in error
    assert f"`selector import FILE --database {database}`" in error


def test_a_report_of_an_imported_operator_is_refused_by_name(database, capsys, tmp_path):
    place = ["--report", str(tmp_path / "report"), "--database", database]
    assert main(["evaluate", foreign.OPERATOR, *place]) == 2
    assert f"{foreign.OPERATOR} is imported" in capsys.readouterr().err
    assert not (tmp_path / "report").exists()


def test_names_with_brackets_are_shown_as_they_are(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [
        {**line, "operator": "gemm[fp16]", "implementation": f"{line['implementation']}[/]"}
        for line in foreign.rows(60)
    ]
    lines = foreign.write(tmp_path / "a[red].jsonl", rows)
    place = ["--database", str(tmp_path / "m[bold].sqlite")]
    assert main(["import", str(lines), *place]) == 0
    assert "Importing a[red].jsonl" in capsys.readouterr().err
    assert main(["train", "gemm[fp16]", *place]) == 0
    assert "Training the cost model of gemm[fp16] ..." in capsys.readouterr().err
    for command in (
        ["choose", "gemm[fp16]", *QUESTION, "--device", "h200"],
        ["operators"],
        ["database", "status"],
        ["status"],
        ["diff", str(tmp_path / "m[bold].sqlite")],
    ):
        assert main([*command, *place]) == 0
        shown = capsys.readouterr().out
        assert "gemm[fp16]" in shown
        assert "[/]" in shown or command[0] not in ("choose", "operators")
    assert main(["database", "upgrade", *place]) == 0
    assert "m[bold].sqlite" in capsys.readouterr().out


@pytest.mark.usefixtures("quick_learner")
def test_training_without_a_name_is_of_all_that_was_measured(capsys, tmp_path):
    place = ["--database", str(tmp_path / "m.sqlite")]
    for operator, count in (("first", 60), ("second", 60), ("small", 1)):
        rows = [{**line, "operator": operator} for line in foreign.rows(count)]
        assert main(["import", str(foreign.write(tmp_path / f"{operator}.jsonl", rows)), *place]) == 0
    capsys.readouterr()
    assert main(["train", *place]) == 0
    shown = capsys.readouterr()
    assert [line.split()[1] for line in shown.out.splitlines() if line.startswith("Trained")] == [
        "first",
        "second",
    ]
    assert "Not trained: There are good measurements of fewer than 10 problems of small." in shown.err
    assert main(["train", "small", *place]) == 1
    assert "Import more" in capsys.readouterr().err
    only = ["--database", str(tmp_path / "only.sqlite")]
    assert main(["import", str(tmp_path / "first.jsonl"), *only]) == 0
    capsys.readouterr()
    assert document(capsys, "train", *only)["operator"] == "first"
