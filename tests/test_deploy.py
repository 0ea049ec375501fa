"""What is in deploy/ fits the project: the container has all it needs, unit and settings are valid."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from kernel_selector.service.cli import main
from kernel_selector.service.settings import PREFIX, Settings

ROOT = Path(__file__).parents[1]
CONTAINER = (ROOT / "deploy/Containerfile").read_text()
UNIT = (ROOT / "deploy/kernel-selector.service").read_text()
NOT_OF_THE_SERVICE = {"HOST", "PORT", "WORKERS", "SELECTOR_DATABASE_URL"}


def copied() -> list[str]:
    """What the container's build copies out of the checkout."""
    lines = re.findall(r"^COPY (?!--from)(.+)$", CONTAINER, re.MULTILINE)
    return [word for line in lines for word in line.split()[:-1]]


def test_the_container_gets_all_that_the_wheel_is_built_from() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    linked = [path.resolve().name for path in (ROOT / "kernel_selector").iterdir() if path.is_symlink()]
    named = [project["project"]["readme"], *project["project"]["license-files"]]
    assert set(copied()) == {"constraints.txt", "pyproject.toml", *named, *packages, *linked}


def test_the_container_leaves_out_what_it_does_not_copy() -> None:
    ignored = (ROOT / "deploy/Containerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    assert {line[1:] for line in ignored if line.startswith("!")} == set(copied())


def test_the_container_has_no_more_rights_than_it_needs() -> None:
    final = CONTAINER.split("FROM ")[-1]
    assert re.search(r"^USER \d+$", final, re.MULTILINE)
    assert "STOPSIGNAL SIGTERM" in final
    assert "exec selector serve" in final  # it gets the signal itself


def commands() -> list[list[str]]:
    """Every call of `selector` in the container and in the unit, without its name."""
    texts = re.findall(r"selector ((?:serve|database|token)[^\"&]*)", CONTAINER.split("FROM ")[-1])
    texts += re.findall(r"bin/selector (.*)", UNIT)
    defaults = {"HOST": "127.0.0.1", "PORT": "8000", "WORKERS": "2"}
    return [
        shlex.split(re.sub(r"\$\{(\w+)\}", lambda found: defaults[found[1]], text.split("`")[0]))
        for text in texts
    ]


IMAGE = "/kernel-selector  # of deploy/Containerfile"
OPENS = r"selector (?:serve|extender|worker)"  # commands that do not start on a database that is not there
MAKES = r"selector database upgrade"


def manifests() -> list[Path]:
    """All manifests of pods that run our image."""
    found = [path for folder in ("deploy", "docs") for path in sorted((ROOT / folder).rglob("*.y*ml"))]
    return [path for path in found if IMAGE in path.read_text()]


def starts() -> dict[str, list[str]]:
    """Commands that start `selector` where the image or the unit names a database, by file."""
    found = {"Containerfile": re.findall(r"^CMD (.*)$", CONTAINER, re.MULTILINE)}
    found["unit"] = ["\n".join(re.findall(r"^ExecStart(?:Pre)?=(.*)$", UNIT, re.MULTILINE))]
    for path in manifests():
        found[path.name] = re.findall(r"^ +command: (\[.*\])", path.read_text(), re.MULTILINE)
    return found


def test_the_pods_of_the_image_are_found() -> None:
    assert "extender.yaml" in {path.name for path in manifests()}


@pytest.mark.parametrize(("file", "commands"), starts().items())
def test_the_database_is_made_before_what_opens_it(file: str, commands: list[str]) -> None:
    """A pod of the image with a new volume ended again and again: the image names a database there."""
    assert commands, file
    for command in commands:
        words = re.sub(r"[\[\],\"]+", " ", command)
        opening = re.search(OPENS, re.sub(r" +", " ", words))
        assert opening, command
        assert re.search(MAKES, opening.string[: opening.start()]), command


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_the_commands_are_there(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--help"]) == 0
    said = capsys.readouterr().out
    for option in (word for word in command if word.startswith("--")):
        assert option in said


def test_the_settings_are_there() -> None:
    named = set(re.findall(r"\b([A-Z_]+)=", (ROOT / "deploy/service.env").read_text()))
    named |= {
        name for line in re.findall(r"^Environment=(.*)", UNIT, re.M) for name in re.findall(r"(\w+)=", line)
    }
    named |= set(re.findall(r"\b(SELECTOR_\w+)=", CONTAINER))
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert named - known - NOT_OF_THE_SERVICE == {"HOME"}


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze on the PATH")
def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "kernel-selector.service"
    unit.write_text(UNIT.replace("/opt/kernel-selector/bin/selector", shutil.which("true") or "/bin/true"))
    run = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=yes", "--threshold=20", unit]  # 2.0 of 10
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", ["audit", "page-screenshots"])
def test_scripts_can_be_run(name: str) -> None:
    assert (ROOT / "scripts" / name).stat().st_mode & 0o111
