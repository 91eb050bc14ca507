"""The settings of the service: environment variables ``PATHLINE_...``, one TOML file, defaults.

An environment variable overrides the file that ``PATHLINE_SETTINGS`` names, and the file overrides the default. Each
field's type or description says what is allowed; the same text is shown when a value is refused. ``python -m
service.settings`` prints the table in docs/settings.md.

Values are cleaned up alike wherever they come from: whitespace around a text, such as the line break at the end of a
mounted file, is dropped; a control character inside is refused; a blank value means the default. Keys are the exception
and may not be blank: a secret that failed to arrive must not open the service.
"""

import os
import re
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.fields import FieldInfo

PREFIX = "PATHLINE_"
FILE = f"{PREFIX}SETTINGS"
"""The variable that names a settings file."""

_OTHERS = {FILE, *(f"{PREFIX}{name}" for name in ("URL", "API_KEY", "RUNS_DIR"))}  # of the SDK and of training
_SECRETS = ("api_keys", "admin_key")
_LISTS = ("api_keys", "cors_origins", "allowed_hosts")

_ORIGIN = re.compile(r"(https?)://([^\s/?#,@:\[\]]+|\[[0-9a-f:.]+\])(?::(\d{1,5}))?")
_PORTS = {"http": 80, "https": 443}
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_KEY = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # visible ASCII except the comma


def _key(value: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(value.get_secret_value()):
        raise ValueError
    return value


def _origin(value: str) -> str:
    """Return an origin as browsers send it: in lower case, ASCII, without the scheme's usual port."""
    if value == "*":
        return value
    parts = _ORIGIN.fullmatch(value.lower())
    if parts is None:
        raise ValueError
    scheme, name, port = parts.groups()
    name = name if name.isascii() else name.encode("idna").decode()
    return f"{scheme}://{name}" + (f":{int(port)}" if port and int(port) != _PORTS[scheme] else "")


def _path(value: str) -> str:
    value = value.rstrip("/")
    if not _PATH.fullmatch(value) or {".", ".."} & set(value.split("/")):
        raise ValueError
    return value


Count = Annotated[int, Field(ge=1), "an integer of at least 1"]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False), "seconds above 0"]
Host = Annotated[str, StringConstraints(pattern=r"^([A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?|\*)$", to_lower=True)]
Origin = Annotated[str, AfterValidator(_origin)]
Key = Annotated[SecretStr, AfterValidator(_key)]


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message is one line for the person who set it."""


class StartError(RuntimeError):
    """The service cannot start; the message is one line that says why and what to do."""


class Settings(BaseModel):
    """The effective settings; frozen, so those printed at startup stay in effect."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address to listen on: a host name or an IP address; :: is all of IPv6 and IPv4",
    )
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port: an integer from 0 (any free port) to 65535")
    uds: str = Field(
        default="",
        description="Unix socket to listen on in place of host and port, for a proxy on the same machine: a path",
    )
    root_path: Annotated[str, AfterValidator(_path)] = Field(
        default="",
        description="path under which a proxy publishes the service without stripping it: none, or one like /pathline",
    )
    public_url: Annotated[str, AfterValidator(lambda url: url.rstrip("/"))] = Field(
        default="",
        pattern=r"^(https?://[^\s/?#,'\"\\]+(/[A-Za-z0-9._~-]+)*/?)?$",
        description="address at which users reach the service, printed at startup; its path begins the links of error "
        "responses: none, or one like https://lab.example/pathline",
    )
    models_dir: Path = Field(default=Path("checkpoints"), description="model repository: a readable folder")
    data_dir: Path = Field(default=Path("data"), description="training data: a folder")
    device: str = Field(
        default="auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="device of the networks: auto, cpu, cuda or cuda:N",
    )
    threads: int = Field(
        default=0,
        ge=0,
        le=1024,
        description="CPU threads of the networks: an integer from 0 (all but one of the cores, or of a CPU quota) to "
        "1024",
    )
    compile: Literal["auto", "off"] = Field(
        default="auto", description="evaluate networks in a compiled form where possible: auto or off"
    )
    compute: Literal["auto", "float32"] = Field(
        default="auto",
        description="precision in which half-precision networks compute: auto (as their cards say) or float32, for a "
        "CPU without half-precision instructions; programs keep their own",
    )
    max_samples: Count = Field(default=100_000, description="samples in one request")
    max_steps: Count = Field(default=10_000, description="fixed steps in one request")
    max_nfe: Count = Field(default=100_000, description="velocity evaluations of one sample")
    max_saved: Count = Field(default=1_000, description="times in save_at")
    max_diagnosed: Count = Field(default=256, description="samples in one diagnosis")
    max_derivatives: Count = Field(
        default=2**22, description="numbers in all Jacobians of a diagnosis, or all random vectors of a log_prob"
    )
    max_body_bytes: Count = Field(default=16 * 2**20, description="bytes of a request body")
    max_answer_bytes: Count = Field(default=256 * 2**20, description="predicted bytes of a response")
    max_job_bytes: Count = Field(
        default=2**30, description="bytes of the states, steps and responses of all requests in progress"
    )
    max_condition_bytes: Count = Field(default=2**28, description="bytes of the conditions of all requests in progress")
    max_queue: Count = Field(default=1_000, description="requests waiting or running")
    max_connections: Count = Field(default=2_000, description="open connections")
    timeout_s: Seconds = Field(default=30.0, description="default time limit of a request")
    max_timeout_s: Seconds = Field(default=600.0, description="longest time limit a request may set")
    keep_alive_s: Count = Field(default=75, description="idle seconds before a connection is closed")
    drain_s: Seconds = Field(default=30.0, description="time that running requests get to finish at shutdown")
    stall_s: Seconds = Field(
        default=60.0,
        description="time until a hanging network call turns /livez to 503; after twice that time the process ends",
    )
    watch_s: float = Field(
        default=2.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds between two checks for new model versions: a number from 0 (never)",
    )
    prelude_cache_bytes: int = Field(
        default=256 * 2**20,
        ge=0,
        description="bytes of results of preludes kept for requests with the same conditions, of all models together: "
        "an integer, 0 to keep none",
    )
    max_model_bytes: int = Field(
        default=0,
        ge=0,
        description="bytes of weights in memory, beyond which the least recently used models are unloaded: an integer, "
        "0 for no limit",
    )
    max_old_versions: Count = Field(default=8, description="older versions kept in memory because requests named them")
    allow_programs: bool = Field(default=False, description="serve models imported as torch.export programs")
    receive_s: Seconds = Field(default=60.0, description="time a client has to send a request, headers and body")
    send_s: Seconds = Field(default=60.0, description="time a client may go without reading any of its response")
    max_header_bytes: int = Field(
        default=32 * 2**10,
        ge=1024,
        description="bytes of a request's first line and headers: an integer of at least 1024",
    )
    cors_origins: tuple[Origin, ...] = Field(
        default=(),
        description="origins whose web pages may use the service: none, * for all, or comma-separated https://name",
    )
    allowed_hosts: tuple[Host, ...] = Field(
        default=(),
        description="names allowed in the Host header, besides IP addresses and localhost: * for any, or "
        "comma-separated names; with none, any name is allowed, but on a loopback address only names without a dot",
    )
    api_keys: tuple[Key, ...] = Field(
        default=(),
        description="API keys; every request must carry one of them: none, or visible ASCII, comma-separated",
    )
    admin_key: Key | None = Field(
        default=None,
        description="key of the administration endpoints, which are closed if it is not set: visible ASCII",
    )
    open_health: bool = Field(default=True, description="/livez, /readyz and /v2/health need no key")
    open_metrics: bool = Field(default=True, description="/metrics needs no key")
    otel_endpoint: str = Field(
        default="",
        pattern=r"^(https?://\S+)?$",
        description="where traces are sent (OTLP over HTTP): none, or an address like http://collector:4318",
    )
    access_log: bool = Field(default=False, description="one log line for each request")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.timeout_s > self.max_timeout_s:
            raise ValueError(
                f"{PREFIX}TIMEOUT_S={self.timeout_s:g} is above {PREFIX}MAX_TIMEOUT_S={self.max_timeout_s:g}; "
                "lower the first or raise the second"
            )
        return self

    @property
    def url_path(self) -> str:
        """Path under which users reach the service: that of the public address, or a proxy's; else empty."""
        return urlsplit(self.public_url).path or self.root_path

    def changed(self) -> list[str]:
        """Return a line for each setting that differs from its default: variable and value, secrets hidden."""
        return [
            f"{_variable(name)} = {_shown(getattr(self, name))}"
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.default
        ]


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment and the file it names; keyword arguments override both.

    Raises:
        SettingsError: The file cannot be read, or a value is refused: one line that names the setting, where it was
            set, the value and what is allowed.
    """
    try:
        return Settings(**_in_file() | _in_environment() | _cleaned(overrides, str))
    except ValidationError as error:
        faults = {_explain(dict(item)): None for item in error.errors()}
        raise SettingsError("; ".join(faults)) from None


def unknown_variables() -> list[str]:
    """Return the variables with our prefix that match no setting (often a typo)."""
    variables = {*map(_variable, Settings.model_fields), *_OTHERS}
    return sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in variables)


def table() -> str:
    """Return all settings as a Markdown table: variable, key in a file, default, what is allowed."""
    rows = ["| variable | in a file | default | meaning: allowed values |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{PREFIX}{name.upper()}` | `{name}` | {_shown(field.default)} | {_about(field)} |")
    return "\n".join(rows) + "\n"


def _in_environment() -> dict[str, Any]:
    variables = {name.upper(): value for name, value in os.environ.items()}
    fields = {name: variables[_variable(name)] for name in Settings.model_fields if _variable(name) in variables}
    return _cleaned(fields, _variable, quoted=True)


def _in_file() -> dict[str, Any]:
    """Return the settings in the file that the environment names.

    Raises:
        SettingsError: The file does not exist, cannot be read, or is not TOML.
    """
    name = _file()
    if not name:
        return {}
    try:
        content = tomllib.loads(Path(name).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{FILE}={name!r} cannot be read: {error.strerror}; name a TOML file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{FILE}={name!r} is not UTF-8; write it as a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{FILE}={name!r} is not TOML: {error}; write lines like port = 8000") from None
    content = {key.lower(): value for key, value in content.items()}
    return _cleaned(content, lambda field: f"{name}: {field}")


def _cleaned(values: Mapping[str, Any], place: Callable[[str], str], quoted: bool = False) -> dict[str, Any]:
    """Return the values of one source, cleaned up: whitespace stripped, lists split at commas, blank values left out.

    Args:
        values: By name.
        place: Returns the name of a setting in that source, given the name of its field.
        quoted: Whether quotes around a value are dropped: Docker's ``--env-file`` keeps them.

    Raises:
        SettingsError: A text contains a control character, or a key is blank.
    """
    cleaned = {}
    for name, value in values.items():
        if quoted:
            value = _unquoted(value.strip())
        if name in _LISTS and isinstance(value, str):
            items = map(str.strip, value.split(","))
            value = tuple(filter(None, map(_unquoted, items) if quoted else items)) or ""
        value = _stripped(value)
        if value == "" and name in _SECRETS:
            raise SettingsError(f"{place(name)} is set but blank; give it a key, or unset it to have none")
        texts = [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]
        for letter in "".join(texts):
            if unicodedata.category(letter) == "Cc":
                commas = ", with commas between several" if name in _LISTS else ""
                raise SettingsError(
                    f"{place(name)} has a control character ({letter!r}) inside; write it on one line{commas}"
                )
        if value != "":
            cleaned[name] = value
    return cleaned


def _unquoted(text: str) -> str:
    """Drop one pair of quotes around a text, unless there are more of them inside, as in `"a","b"`."""
    inside = text[1:-1]
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\"" and text[0] not in inside
    return inside if quoted else text


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    return [_stripped(item) for item in value] if isinstance(value, list) else value


def _shown(value: Any) -> str:
    """Return a value as it is printed: secrets hidden, lists with commas, truth values as they are written."""
    if isinstance(value, SecretStr):
        return "(hidden)"
    if isinstance(value, tuple):
        if value and isinstance(value[0], SecretStr):
            return f"(hidden, {len(value)})"
        return ",".join(map(str, value)) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    return "none" if value is None or value == "" else str(value)


def _about(field: FieldInfo) -> str:
    """Return what a setting means, and what is allowed."""
    words = [text for text in field.metadata if isinstance(text, str)] + ["true or false"] * (field.annotation is bool)
    return ": ".join([field.description or "", *words])


def _explain(fault: Mapping[str, Any]) -> str:
    """Return a pydantic error as 'NAME=value is not allowed: ...', NAME being the place where it was set."""
    if not fault["loc"]:
        return str(fault["msg"]).removeprefix("Value error, ")
    name = str(fault["loc"][0]).lower()
    field = Settings.model_fields.get(name)
    if field is None:
        return f"{_place(name)} is not a setting; settings: {', '.join(Settings.model_fields)}"
    value = "(hidden)" if name in _SECRETS else repr(fault["input"])
    return f"{_place(name)}={value} is not allowed; {_about(field)} (default {_shown(field.default)})"


def _place(name: str) -> str:
    """Return the variable that sets a field, or the file and its key there."""
    file, variable = _file(), _variable(name)
    return f"{file}: {name}" if file and not os.environ.get(variable, "").strip() else variable


def _file() -> str:
    return os.environ.get(FILE, "").strip()


def _variable(field: str) -> str:
    return f"{PREFIX}{field.upper()}"


if __name__ == "__main__":
    print(table(), end="")
