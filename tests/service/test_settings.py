"""Settings from the environment, and one clear line for each refused value."""

import json
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from service.settings import Settings, SettingsError, load_settings, unknown_variables


def test_defaults() -> None:
    settings = load_settings()
    assert (settings.host, settings.port, settings.device) == ("127.0.0.1", 8000, "auto")
    assert settings.models_dir == Path("checkpoints")
    assert (settings.max_samples, settings.max_steps, settings.max_nfe) == (100_000, 10_000, 100_000)


def test_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_PORT", "9001")
    monkeypatch.setenv("PATHLINE_DEVICE", "cuda:1")
    monkeypatch.setenv("PATHLINE_HOST", "")  # as `docker run -e` leaves it: the default applies
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
        ("RECEIVE_S", "-1", "above 0"),
        ("MAX_HEADER_BYTES", "100", "at least 1024"),
        ("CORS_ORIGINS", "example.org", "https://name"),
        ("CORS_ORIGINS", "https://example.org/path", "https://name"),
        ("OTEL_ENDPOINT", "collector:4318", "http://collector:4318"),
        ("OPEN_METRICS", "2", "true or false"),
    ],
)
def test_refusals(name: str, value: str, allowed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"PATHLINE_{name}", value)
    with pytest.raises(SettingsError) as caught:
        load_settings()
    message = str(caught.value)
    assert message.startswith(f"PATHLINE_{name}={value!r} is not allowed; ")
    assert message.count("is not allowed") == 1
    assert allowed in message
    assert "\n" not in message


def test_time_limits_must_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_TIMEOUT_S", "700")
    with pytest.raises(SettingsError, match="PATHLINE_TIMEOUT_S=700 is above PATHLINE_MAX_TIMEOUT_S=600"):
        load_settings()


def test_every_setting_says_what_is_allowed() -> None:
    assert [name for name, field in Settings.model_fields.items() if not field.description] == []


def test_what_differs_from_the_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().changed() == []
    monkeypatch.setenv("PATHLINE_PORT", "9001")
    monkeypatch.setenv("PATHLINE_HOST", "127.0.0.1")  # equal to the default
    monkeypatch.setenv("PATHLINE_ACCESS_LOG", "1")
    assert load_settings().changed() == ["PATHLINE_PORT = 9001", "PATHLINE_ACCESS_LOG = true"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [("https://lab.example/pathline/", "https://lab.example/pathline"), ("http://[::1]:8000", "http://[::1]:8000")],
)
def test_public_url(given: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_PUBLIC_URL", given)
    assert load_settings().public_url == shown


@pytest.mark.parametrize(
    ("root_path", "public_url", "found"),
    [
        ("", "", ""),
        ("/ml", "", "/ml"),
        ("/ml", "https://lab.example", "/ml"),
        ("", "https://lab.example/ml", "/ml"),
        ("/inner", "https://lab.example/outer", "/outer"),
    ],
)
def test_links_start_at_the_path_of_the_public_address_or_else_of_the_proxy(
    root_path: str, public_url: str, found: str
) -> None:
    assert Settings(root_path=root_path, public_url=public_url).url_path == found


@pytest.mark.parametrize("given", ["lab.example", "ftp://lab.example", "https://a/?x=1", "https://a'b", "https://"])
def test_public_url_that_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_PUBLIC_URL", given)
    with pytest.raises(SettingsError, match=r"PATHLINE_PUBLIC_URL=.* is not allowed; address at which users reach"):
        load_settings()


def test_lists_have_commas_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_CORS_ORIGINS", "https://a.example, http://localhost:3000,")
    monkeypatch.setenv("PATHLINE_API_KEYS", "first,second")
    settings = load_settings()
    assert settings.cors_origins == ("https://a.example", "http://localhost:3000")
    assert [key.get_secret_value() for key in settings.api_keys] == ["first", "second"]


def test_secrets_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_API_KEYS", "first-secret,second-secret")
    monkeypatch.setenv("PATHLINE_ADMIN_KEY", "third-secret")
    settings = load_settings()
    assert "secret" not in "".join(settings.changed()) + repr(settings)
    assert "PATHLINE_API_KEYS = (hidden, 2)" in settings.changed()
    for name, value in (("ADMIN_KEY", "my secret"), ("API_KEYS", "good,my secret"), ("API_KEYS", "sécret")):
        with monkeypatch.context() as changed:
            changed.setenv(f"PATHLINE_{name}", value)
            with pytest.raises(SettingsError, match=rf"PATHLINE_{name}=\(hidden\) is not allowed; .*key") as caught:
                load_settings()
        assert "cret" not in str(caught.value)


@pytest.mark.parametrize("value", ["one,two", '"one,two"', "'one','two'", ' "one" , two ', '"one", "two"'])
def test_quotes_around_a_variable_are_no_part_of_it(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("PATHLINE_API_KEYS", value)
    monkeypatch.setenv("PATHLINE_MODELS_DIR", '"/models"')
    settings = load_settings()
    assert [key.get_secret_value() for key in settings.api_keys] == ["one", "two"]
    assert settings.models_dir == Path("/models")


def test_a_key_in_quotes_may_be_blank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_ADMIN_KEY", '""')
    with pytest.raises(SettingsError, match="PATHLINE_ADMIN_KEY is set but blank"):
        load_settings()


@pytest.mark.parametrize(
    ("value", "origin"),
    [
        ("https://Lab.Example", "https://lab.example"),
        ("HTTPS://b.example:443", "https://b.example"),
        ("http://b.example:80", "http://b.example"),
        ("http://b.example:443", "http://b.example:443"),
        ("https://b.example:08443", "https://b.example:8443"),
        ("http://[::1]:3000", "http://[::1]:3000"),
        ("https://b\u00fccher.example", "https://xn--bcher-kva.example"),
    ],
)
def test_origins_are_kept_as_browsers_send_them(monkeypatch: pytest.MonkeyPatch, value: str, origin: str) -> None:
    monkeypatch.setenv("PATHLINE_CORS_ORIGINS", value)
    assert load_settings().cors_origins == (origin,)


def _file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str) -> Path:
    path = tmp_path / "settings.toml"
    path.write_text(content)
    monkeypatch.setenv("PATHLINE_SETTINGS", str(path))
    return path


def test_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _file(monkeypatch, tmp_path, 'port = 9001\nhost = "::1"\napi_keys = ["one", "two"]\ncors_origins = "https://a"\n')
    monkeypatch.setenv("PATHLINE_HOST", "localhost")
    settings = load_settings(threads=3)
    assert (settings.port, settings.host, settings.threads) == (9001, "localhost", 3)
    assert (len(settings.api_keys), settings.cors_origins) == (2, ("https://a",))
    assert "PATHLINE_PORT = 9001" in settings.changed()
    assert unknown_variables() == []


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 1", "settings.toml: prot is not a setting; settings: host, port"),
        ("PATHLINE_PORT = 1", "settings.toml: pathline_port is not a setting"),
        ("[server]\nport = 1", "settings.toml: server is not a setting"),
        ("port = 70000", "settings.toml: port=70000 is not allowed; TCP port"),
        ("port = = 1", "is not TOML: "),
        ("port = 1\nport = 2", "is not TOML: "),
        ('api_keys = ["a b"]', r"settings.toml: api_keys=\(hidden\) is not allowed"),
    ],
)
def test_file_that_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, message: str) -> None:
    _file(monkeypatch, tmp_path, content)
    with pytest.raises(SettingsError, match=message) as caught:
        load_settings()
    assert "\n" not in str(caught.value)


def test_the_variable_is_named_where_it_wins_over_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    _file(monkeypatch, tmp_path, "port = 9001")
    monkeypatch.setenv("PATHLINE_PORT", "x")
    with pytest.raises(SettingsError, match=r"^PATHLINE_PORT='x' is not allowed"):
        load_settings()


def test_file_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = _file(monkeypatch, tmp_path, "")
    for name, words in ((path.parent / "none.toml", "No such file"), (tmp_path, "Is a directory")):
        monkeypatch.setenv("PATHLINE_SETTINGS", str(name))
        with pytest.raises(SettingsError, match=f"{name.name}' cannot be read: {words}"):
            load_settings()
    path.write_bytes(b"\xff\xfe")
    monkeypatch.setenv("PATHLINE_SETTINGS", str(path))
    with pytest.raises(SettingsError, match="is not UTF-8"):
        load_settings()


def test_unknown_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_PROT", "1")
    monkeypatch.setenv("PATHLINE_URL", "http://x")
    assert unknown_variables() == ["PATHLINE_PROT"]


@pytest.mark.parametrize("space", ["\n", "\r\n", " ", "\t\n ", "\u00a0"])
def test_space_around_a_value_does_not_count(space: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = {
        "host": "localhost",
        "port": "9001",
        "device": "cpu",
        "access_log": "true",
        "models_dir": "models",
        "otel_endpoint": "http://c:1",
        "cors_origins": "https://a",
        "api_keys": "one,two",
        "admin_key": "adm",
    }
    plain = load_settings(**values)
    assert (plain.port, plain.models_dir, len(plain.api_keys)) == (9001, Path("models"), 2)
    spaced = {name: space + value.replace(",", f"{space},{space}") + space for name, value in values.items()}
    for name, value in spaced.items():
        monkeypatch.setenv(f"PATHLINE_{name.upper()}", value)
    assert load_settings() == plain
    for name in spaced:
        monkeypatch.delenv(f"PATHLINE_{name.upper()}")
    lines = [f"{name} = {json.dumps(value)}" for name, value in spaced.items()]
    path = _file(monkeypatch, tmp_path, "\ufeff" + "\n".join(lines))  # as some editors write at the start of a file
    monkeypatch.setenv("PATHLINE_SETTINGS", f"{path}{space}")
    assert load_settings() == plain
    path.write_text(f"api_keys = {json.dumps(['one' + space, space + 'two'])}\n")
    assert load_settings().api_keys == plain.api_keys


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("HOST", "local\nhost", "PATHLINE_HOST has a control character ('\\n') inside; write it on one line"),
        ("MODELS_DIR", "a\x7fb", "PATHLINE_MODELS_DIR has a control character ('\\x7f') inside"),
        ("ADMIN_KEY", "top\nsecret", "PATHLINE_ADMIN_KEY has a control character ('\\n') inside; write it on one line"),
        (
            "API_KEYS",
            "top\nsecret",
            "PATHLINE_API_KEYS has a control character ('\\n') inside; write it on one line, wi",
        ),
        ("API_KEYS", "one, top\tsecret", "PATHLINE_API_KEYS has a control character ('\\t') inside"),
        ("CORS_ORIGINS", "https://a\x85b", "PATHLINE_CORS_ORIGINS has a control character ('\\x85') inside"),
    ],
)
def test_control_characters(name: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with monkeypatch.context() as changed:
        changed.setenv(f"PATHLINE_{name}", value)
        in_environment = _refusal()
    path = _file(monkeypatch, tmp_path, f"{name.lower()} = {json.dumps(value)}")
    in_file = _refusal()
    assert in_environment.startswith(words)
    assert in_file == in_environment.replace(f"PATHLINE_{name}", f"{path}: {name.lower()}")
    assert "secret" not in in_environment


def _refusal() -> str:
    with pytest.raises(SettingsError) as caught:
        load_settings()
    return str(caught.value)


@pytest.mark.parametrize("blank", ["", " ", "\n", ",", " , ,\n"])
@pytest.mark.parametrize("name", ["api_keys", "admin_key"])
def test_blank_keys_do_not_open_the_service(
    name: str, blank: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    variable = f"PATHLINE_{name.upper()}"
    with monkeypatch.context() as changed:
        path = _file(changed, tmp_path, f"{name} = {json.dumps(blank)}")
        with pytest.raises(SettingsError, match=rf"^{path}: {name}(=\(hidden\))? is "):
            load_settings()
        path.write_text(f'{name} = "a-key"\n')  # the variable takes precedence, and its value is not a key
        changed.setenv(variable, blank)
        with pytest.raises(SettingsError, match="is set but blank; give it a key" if name == "api_keys" else "key"):
            load_settings()


def test_names_in_a_file_may_be_written_as_variables_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = _file(monkeypatch, tmp_path, 'PORT = 9001\nApi_Keys = "one,two"')
    assert (load_settings().port, len(load_settings().api_keys)) == (9001, 2)
    path.write_text('API_KEYS = " "')
    with pytest.raises(SettingsError, match="api_keys is set but blank; give it a key"):
        load_settings()


def test_a_blank_key_among_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATHLINE_API_KEYS", "one,,two,")
    assert len(load_settings().api_keys) == 2
    monkeypatch.delenv("PATHLINE_API_KEYS")
    for listed in ('[""]', '["one", " "]'):
        _file(monkeypatch, tmp_path, f"api_keys = {listed}")
        with pytest.raises(SettingsError, match=r"api_keys=\(hidden\) is not allowed"):
            load_settings()
    _file(monkeypatch, tmp_path, "api_keys = []")
    assert load_settings().api_keys == ()


@pytest.mark.parametrize("blank", ["", " ", "\n"])
def test_other_blank_settings_are_not_set(blank: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOST", "PORT", "MODELS_DIR", "CORS_ORIGINS", "OTEL_ENDPOINT", "ACCESS_LOG"):
        monkeypatch.setenv(f"PATHLINE_{name}", blank)
    assert load_settings() == Settings.model_construct()
    assert load_settings().changed() == []
    _file(monkeypatch, tmp_path, f"port = 9001\nhost = {json.dumps(blank)}")
    assert (load_settings().port, load_settings().host) == (9001, "127.0.0.1")


def test_a_refusal_of_pydantic_shows_no_secret() -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(admin_key=SecretStr("my secret"))
    assert "secret" not in str(caught.value)
