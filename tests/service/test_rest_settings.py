"""Settings come from the environment, and one that does not fit is named."""

import pytest

from kernel_selector.service.settings import InvalidSetting, Settings


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("SELECTOR_MAX_BODY_BYTES", "0"),
        ("SELECTOR_MAX_BODY_BYTES", "-1"),
        ("SELECTOR_MAX_BODY_BYTES", "64k"),
        ("SELECTOR_MAX_BODY_BYTES", ""),
        ("SELECTOR_MAX_BODY_BYTES", "9" * 5000),
        ("SELECTOR_ACCESS_LOG", "maybe"),
    ],
)
def test_settings_that_are_none(variable, value):
    with pytest.raises(InvalidSetting, match=r"expected") as caught:
        Settings.from_environment({variable: value})
    assert variable.removeprefix("SELECTOR_").lower() in str(caught.value).lower()


def test_settings_from_the_environment():
    environment = {"SELECTOR_MAX_BODY_BYTES": "100", "SELECTOR_ACCESS_LOG": "False", "OTHER": "x"}
    assert Settings.from_environment(environment) == Settings(max_body_bytes=100, access_log=False)
    assert Settings.from_environment({}) == Settings()
