"""Every setting of the service, read from the environment variables ``PATHLINE_...``.

Each field's description says what is allowed; the same text is shown when a value is refused.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "PATHLINE_"

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message is one line for the person who set it."""


class StartError(RuntimeError):
    """The service cannot start; the message is one line that says why and what to do."""


class Settings(BaseSettings):
    """The resolved settings; frozen, so what is printed at start is what holds until the end."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on: a host name or an IP address"
    )
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port: an integer from 0 (any free port) to 65535")
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
        description="CPU threads of the networks: an integer from 0 (decided by torch) to 1024",
    )
    cuda_graphs: bool = Field(
        default=False, description="capture calls of few rows as CUDA graphs, by number of rows: true or false"
    )
    max_samples: Count = Field(default=100_000, description="samples in one request: an integer of at least 1")
    max_steps: Count = Field(default=10_000, description="fixed steps in one request: an integer of at least 1")
    max_nfe: Count = Field(default=100_000, description="velocity evaluations of one sample: an integer of at least 1")
    max_saved: Count = Field(default=1_000, description="times in save_at: an integer of at least 1")
    max_body_bytes: Count = Field(default=16 * 2**20, description="bytes of a request body: an integer of at least 1")
    max_answer_bytes: Count = Field(
        default=256 * 2**20, description="predicted bytes of an answer: an integer of at least 1"
    )
    max_queue: Count = Field(default=1_000, description="requests waiting or running: an integer of at least 1")
    max_connections: Count = Field(default=2_000, description="open connections: an integer of at least 1")
    timeout_s: Seconds = Field(default=30.0, description="time limit of a request that names none: seconds above 0")
    max_timeout_s: Seconds = Field(default=600.0, description="highest time limit a request may name: seconds above 0")
    keep_alive_s: Count = Field(
        default=75, description="idle seconds before a connection is closed: an integer of at least 1"
    )
    drain_s: Seconds = Field(default=30.0, description="time for running requests at shutdown: seconds above 0")
    watch_s: float = Field(
        default=2.0,
        ge=0,
        allow_inf_nan=False,
        description="seconds between looks for new model versions: a number from 0 (never)",
    )
    max_model_bytes: int = Field(
        default=0, ge=0, description="bytes of weights in memory, beyond it the least recently used give way: 0 for any"
    )
    admin_key: SecretStr | None = Field(
        default=None, min_length=8, description="key of the administrative addresses: at least 8 characters"
    )
    access_log: bool = Field(default=False, description="one log line for each request: true or false")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.timeout_s > self.max_timeout_s:
            raise ValueError(
                f"{PREFIX}TIMEOUT_S={self.timeout_s:g} is above {PREFIX}MAX_TIMEOUT_S={self.max_timeout_s:g}; "
                "lower the first or raise the second"
            )
        return self

    def lines(self) -> list[str]:
        """Return one line for each setting: variable, value, and whether the default holds."""
        names = list(type(self).model_fields)
        width = max(map(len, names)) + len(PREFIX)
        set_here = self.model_fields_set
        return [
            f"{PREFIX}{name.upper()}".ljust(width)
            + f" = {getattr(self, name)}"
            + ("" if name in set_here else " (default)")
            for name in names
        ]


def load_settings(**overrides: Any) -> Settings:
    """Read the settings from the environment; keyword arguments win over it.

    Raises:
        SettingsError: A value is refused; one line that names the variable, the value and what is allowed.
    """
    try:
        return Settings(**overrides)
    except ValidationError as error:
        raise SettingsError("; ".join(_explain(dict(item)) for item in error.errors())) from None


def unknown_variables() -> list[str]:
    """Return the names of set variables that begin with the prefix but are no setting (often a typing error)."""
    known = {f"{PREFIX}{name}".upper() for name in Settings.model_fields} | {f"{PREFIX}URL"}  # URL is the SDK's
    return sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)


def _explain(item: dict[str, Any]) -> str:
    """Turn one pydantic error into 'VARIABLE=value is not allowed: ...'."""
    if not item["loc"]:
        return str(item["msg"]).removeprefix("Value error, ")
    name = str(item["loc"][0]).lower()
    field = Settings.model_fields.get(name)
    if field is None:
        return f"{PREFIX}{name.upper()} is not a setting; settings: {', '.join(Settings.model_fields)}"
    return f"{PREFIX}{name.upper()}={item['input']!r} is not allowed; {field.description} (default {field.default})"
