"""Settings come from the environment and a file, one that does not fit is named, and so is its source."""

import json

import pytest

from kernel_selector.service.cli import main
from kernel_selector.service.settings import InvalidSetting, Settings, in_force, misspelt


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch):
    for name in Settings.model_fields:
        monkeypatch.delenv(f"SELECTOR_{name.upper()}", raising=False)
    monkeypatch.delenv("SELECTOR_SETTINGS", raising=False)


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Makes a settings file and names it in the environment."""

    def make(text):
        path = tmp_path / "settings.toml"
        path.write_text(text)
        monkeypatch.setenv("SELECTOR_SETTINGS", str(path))

    return make


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SELECTOR_MAX_BODY_BYTES", "0"),
        ("SELECTOR_MAX_BODY_BYTES", "-1"),
        ("SELECTOR_MAX_BODY_BYTES", "64k"),
        ("SELECTOR_MAX_BODY_BYTES", ""),
        ("SELECTOR_MAX_BODY_BYTES", "9" * 5000),
        ("SELECTOR_ACCESS_LOG", "maybe"),
        ("SELECTOR_TOKENS", "none"),
        ("SELECTOR_REQUESTS_PER_S", "nan"),
        ("SELECTOR_SHUTDOWN_S", "-1"),
    ],
)
def test_settings_that_are_none(variable, value, monkeypatch):
    monkeypatch.setenv(variable, value)
    with pytest.raises(InvalidSetting, match=variable) as caught:
        Settings.load()
    assert len(str(caught.value)) < 300


def test_the_environment_outweighs_the_file(write, monkeypatch):
    write('max_body_bytes = 200\ntokens = "required"\n')
    monkeypatch.setenv("SELECTOR_MAX_BODY_BYTES", "100")
    monkeypatch.setenv("SELECTOR_ACCESS_LOG", "False")
    settings = Settings.load()
    assert (settings.max_body_bytes, settings.tokens, settings.access_log) == (100, "required", False)
    found = {item.name: (item.value, item.source) for item in in_force()}
    assert found["max_body_bytes"] == (100, "environment")
    assert found["tokens"] == ("required", "file")
    assert found["shutdown_s"] == (10, "default")
    assert all(item.meaning for item in in_force())


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("max_bodies = 1", "max_bodies"),
        ("max_body_bytes = 0", "MAX_BODY_BYTES"),
        ("= 1", "SELECTOR_SETTINGS"),
    ],
)
def test_files_of_no_use(write, text, word):
    write(text)
    with pytest.raises(InvalidSetting, match=word):
        Settings.load()


def test_a_file_that_is_not_there(monkeypatch):
    monkeypatch.setenv("SELECTOR_SETTINGS", "/nonesuch.toml")
    with pytest.raises(InvalidSetting, match="no such file"):
        Settings.load()


def test_variables_that_are_not_the_services(monkeypatch):
    monkeypatch.setenv("SELECTOR_DATABASE_URL", "x")
    monkeypatch.setenv("SELECTOR_OTHER", "x")
    assert Settings.load() == Settings()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SELECTOR_MAX_BODY_BYTE", "SELECTOR_MAX_BODY_BYTES"),
        ("SELECTOR_TOKNES", "SELECTOR_TOKENS"),
        ("SELECTOR_REQUEST_PER_S", "SELECTOR_REQUESTS_PER_S"),
        ("SELECTOR_LOGFORMAT", "SELECTOR_LOG_FORMAT"),
        ("SELECTOR_TOKEN", None),
        ("SELECTOR_OTHER", None),
        ("SELECTOR_OVERRIDE_LSTM", None),
        ("PATH", None),
    ],
)
def test_a_misspelt_setting_is_pointed_out(monkeypatch, capsys, variable, meant):
    assert misspelt() == []
    monkeypatch.setenv(variable, "required")
    said = [f"{variable} is no setting, and does nothing: did you mean {meant}?"] if meant else []
    assert misspelt() == said
    assert main(["config", "--json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["settings"]
    assert (variable in captured.err) is bool(meant)
