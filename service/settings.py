"""Every setting of the service, read from environment variables ``PATHLINE_...`` and from a file.

Each field's description says what is allowed; the same text is shown when a value is refused. A variable of the
environment wins over the file that ``PATHLINE_SETTINGS`` names, and the file over the default.
"""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from service import sources
from service.sources import PREFIX, SettingsError, shown

__all__ = ["PREFIX", "Settings", "SettingsError", "StartError", "load_settings", "unknown_variables"]

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


def _key(value: SecretStr) -> SecretStr:
    if not _KEY.fullmatch(value.get_secret_value()):
        raise ValueError
    return value


def _origin(value: str) -> str:
    if not _ORIGIN.fullmatch(value):
        raise ValueError
    return value


def _path(value: str) -> str:
    value = value.rstrip("/")
    if not _PATH.fullmatch(value) or {".", ".."} & set(value.split("/")):
        raise ValueError
    return value


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise ValueError
    return value.lower()


Hosts = Annotated[tuple[Annotated[str, AfterValidator(_host)], ...], NoDecode]
Names = Annotated[tuple[Annotated[str, AfterValidator(_origin)], ...], NoDecode]
Secret = Annotated[SecretStr, AfterValidator(_key)] | None
Secrets = Annotated[tuple[Annotated[SecretStr, AfterValidator(_key)], ...], NoDecode]

ONE_PROCESS = (
    "one process owns a device and puts all requests into the same network batch: run one service a device, each on "
    "its own port, behind a balancer"
)
"""Why there is one worker."""

_ORIGIN = re.compile(r"https?://[^\s/?#,]+|\*")
_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)*")
_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_])?|\*")  # without a port
_KEY = re.compile(r"[\x21-\x2b\x2d-\x7e]+")  # visible ASCII but a comma


class StartError(RuntimeError):
    """The service cannot start; the message is one line that says why and what to do."""


class Settings(BaseSettings):
    """The resolved settings; frozen, so what is printed at start is what holds until the end."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", hide_input_in_errors=True)

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on: a host name or an IP address"
    )
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port: an integer from 0 (any free port) to 65535")
    root_path: Annotated[str, AfterValidator(_path)] = Field(
        default="",
        description="path that a proxy keeps in front of every address: none, or one like /pathline",
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
        description="CPU threads of the networks: an integer from 0 (one for each core but one) to 1024",
    )
    cuda_graphs: bool = Field(
        default=False, description="capture calls of few rows as CUDA graphs, by number of rows: true or false"
    )
    compile: Literal["auto", "off"] = Field(
        default="auto", description="fuse networks into compiled calls where that is possible: auto or off"
    )
    max_samples: Count = Field(default=100_000, description="samples in one request: an integer of at least 1")
    max_steps: Count = Field(default=10_000, description="fixed steps in one request: an integer of at least 1")
    max_nfe: Count = Field(default=100_000, description="velocity evaluations of one sample: an integer of at least 1")
    max_saved: Count = Field(default=1_000, description="times in save_at: an integer of at least 1")
    max_diagnosed: Count = Field(default=256, description="samples in one diagnosis: an integer of at least 1")
    max_derivatives: Count = Field(
        default=2**22,
        description="numbers in all Jacobians of a diagnosis, or all random vectors of a log_prob: an integer of at "
        "least 1",
    )
    max_body_bytes: Count = Field(default=16 * 2**20, description="bytes of a request body: an integer of at least 1")
    max_answer_bytes: Count = Field(
        default=256 * 2**20, description="predicted bytes of an answer: an integer of at least 1"
    )
    max_job_bytes: Count = Field(
        default=2**30,
        description="bytes of the states, steps and responses of all requests in progress: an integer of at least 1",
    )
    max_queue: Count = Field(default=1_000, description="requests waiting or running: an integer of at least 1")
    max_connections: Count = Field(default=2_000, description="open connections: an integer of at least 1")
    timeout_s: Seconds = Field(default=30.0, description="default time limit of a request: seconds above 0")
    max_timeout_s: Seconds = Field(
        default=600.0, description="longest time limit that a request may ask for: seconds above 0"
    )
    keep_alive_s: Count = Field(
        default=75, description="idle seconds before a connection is closed: an integer of at least 1"
    )
    drain_s: Seconds = Field(default=30.0, description="time for running requests at shutdown: seconds above 0")
    stall_s: Seconds = Field(
        default=60.0,
        description="time until a hanging network call turns /livez to 503; after twice as long the process ends: "
        "seconds above 0",
    )
    watch_s: float = Field(
        default=2.0,
        ge=0,
        allow_inf_nan=False,
        description="the most seconds between two checks for new model versions; changes that the file system reports "
        "are seen sooner: a number from 0 (never)",
    )
    max_model_bytes: int = Field(
        default=0,
        ge=0,
        description="bytes of weights in memory; the least recently used models go first: an integer, 0 for no limit",
    )
    max_old_versions: Count = Field(
        default=8,
        description="versions in memory that requests asked for by number, besides the current version of each model: "
        "an integer of at least 1",
    )
    allow_programs: bool = Field(
        default=False, description="serve models imported as torch.export programs: true or false"
    )
    receive_s: Seconds = Field(
        default=60.0, description="time for a client to send a request, head and body: seconds above 0"
    )
    send_s: Seconds = Field(
        default=60.0, description="time that a client may spend without reading any of its answer: seconds above 0"
    )
    max_header_bytes: int = Field(
        default=32 * 2**10,
        ge=1024,
        description="bytes of a request's first line and headers: an integer of at least 1024",
    )
    workers: int = Field(default=1, description="processes of this service: always 1")
    cors_origins: Names = Field(
        default=(),
        description="origins whose pages may use the service: none, * for all, or comma-separated https://name",
    )
    allowed_hosts: Hosts = Field(
        default=(),
        description="names allowed in the Host header, besides IP addresses and localhost: * for any, or "
        "comma-separated names; none: any, but on a loopback address only names without a dot",
    )
    api_keys: Secrets = Field(
        default=(),
        description="keys, one of which every request must carry: none, or visible ASCII, comma-separated",
    )
    admin_key: Secret = Field(
        default=None,
        description="key for the endpoints that change the service, which are closed without it: visible ASCII",
    )
    open_health: bool = Field(default=True, description="/livez, /readyz and /v2/health need no key: true or false")
    open_metrics: bool = Field(default=True, description="/metrics needs no key: true or false")
    otel_endpoint: str = Field(
        default="",
        pattern=r"^(https?://\S+)?$",
        description="where traces are sent (OTLP over HTTP): empty for nowhere, or an address like http://collector:4318",
    )
    access_log: bool = Field(default=False, description="one log line for each request: true or false")

    @model_validator(mode="after")
    def _one_process(self) -> Self:
        if self.workers != 1:
            raise ValueError(f"{PREFIX}WORKERS={self.workers} is not allowed; it must be 1, because {ONE_PROCESS}")
        return self

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.timeout_s > self.max_timeout_s:
            raise ValueError(
                f"{PREFIX}TIMEOUT_S={self.timeout_s:g} is above {PREFIX}MAX_TIMEOUT_S={self.max_timeout_s:g}; "
                "lower the first or raise the second"
            )
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return where values come from, the first that has one wins."""
        return sources.settings_sources(settings_cls, init_settings, env_settings)

    def lines(self) -> list[str]:
        """Return one line for each setting: variable, value (secrets hidden), and whether the default holds."""
        width = max(map(len, type(self).model_fields)) + len(PREFIX)
        return [
            f"{PREFIX}{name.upper()}".ljust(width)
            + f" = {shown(getattr(self, name))}"
            + ("" if name in self.model_fields_set else " (default)")
            for name in type(self).model_fields
        ]


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment and the file it names; keyword arguments win over both.

    Raises:
        SettingsError: The file cannot be read, or a value is refused: one line that names the setting, where it was
            set, the value and what is allowed.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        faults = {sources.explain(dict(item), Settings.model_fields): None for item in error.errors()}
        raise SettingsError("; ".join(faults)) from None


def unknown_variables() -> list[str]:
    """Return the names of set variables that begin with the prefix but are no setting (often a typing error)."""
    return sources.unknown_variables(Settings.model_fields)
