"""Settings from the environment, and one clear line for each that is refused."""

from pathlib import Path

import pytest

from service.settings import Settings, SettingsError, load_settings, unknown_variables


def test_defaults() -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.device) == ("127.0.0.1", 8000, "auto")
    assert settings.models_dir == Path("checkpoints")
    assert (settings.max_samples, settings.max_steps, settings.max_nfe) == (100_000, 10_000, 100_000)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_PORT", "9001")
    monkeypatch.setenv("PATHLINE_DEVICE", "cuda:1")
    monkeypatch.setenv("PATHLINE_HOST", "")  # as `docker run -e` leaves it: the default
    settings = load_settings()
    assert (settings.port, settings.device, settings.host) == (9001, "cuda:1", "127.0.0.1")


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("PORT", "abc", "0 (any free port) to 65535"),
        ("PORT", "70000", "0 (any free port) to 65535"),
        ("PORT", "80.5", "an integer"),
        ("DEVICE", "tpu", "auto, cpu, cuda or cuda:N"),
        ("MAX_SAMPLES", "0", "at least 1"),
        ("MAX_BODY_BYTES", "-1", "at least 1"),
        ("TIMEOUT_S", "nan", "above 0"),
        ("TIMEOUT_S", "inf", "above 0"),
        ("DRAIN_S", "0", "above 0"),
        ("ACCESS_LOG", "perhaps", "true or false"),
        ("THREADS", "-2", "from 0"),
    ],
)
def test_refusals(name: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PATHLINE_{name}", value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert message.startswith(f"PATHLINE_{name}={value!r} is not allowed; ")
    assert allowed in message
    assert "\n" not in message


def test_time_limits_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_TIMEOUT_S", "700")
    with pytest.raises(SettingsError, match="PATHLINE_TIMEOUT_S=700 is above PATHLINE_MAX_TIMEOUT_S=600"):
        load_settings()


def test_every_setting_says_what_is_allowed() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_lines_show_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_PORT", "9001")
    lines = load_settings().lines()
    assert len(lines) == len(Settings.model_fields)
    assert "PATHLINE_PORT             = 9001" in lines
    assert "PATHLINE_HOST             = 127.0.0.1 (default)" in lines


def test_unknown_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_PROT", "1")
    monkeypatch.setenv("PATHLINE_URL", "http://x")
    assert unknown_variables() == ["PATHLINE_PROT"]
