"""Where settings come from: the environment and one TOML file; and what is said of a value that is refused."""

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource

PREFIX = "PATHLINE_"
FILE = f"{PREFIX}SETTINGS"
"""The variable that names a file of settings."""

_OTHERS = {FILE, f"{PREFIX}URL", f"{PREFIX}API_KEY"}  # no settings of the service: the last two are the SDK's
_SECRETS = ("api_keys", "admin_key")


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message is one line for the person who set it."""


def file_source(settings: type[BaseSettings]) -> InitSettingsSource | None:
    """Return the settings of the file that ``PATHLINE_SETTINGS`` names, or None where it names none.

    Raises:
        SettingsError: There is no such file, it cannot be read, or it is not TOML.
    """
    name = os.environ.get(FILE)
    if not name:
        return None
    try:
        return InitSettingsSource(settings, tomllib.loads(Path(name).read_text(encoding="utf-8")))
    except OSError as error:
        raise SettingsError(f"{FILE}={name!r} cannot be read: {error.strerror}; name a TOML file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{FILE}={name!r} is not UTF-8; write it as a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{FILE}={name!r} is not TOML: {error}; write lines like port = 8000") from None


def unknown_variables(fields: Mapping[str, FieldInfo]) -> list[str]:
    """Return the names of set variables that begin with the prefix but are no setting (often a typing error)."""
    known = {f"{PREFIX}{name}".upper() for name in fields} | _OTHERS
    return sorted(name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known)


def shown(value: Any) -> str:
    """Return a value as it is printed: secrets hidden, lists with commas."""
    if isinstance(value, SecretStr):
        return "(hidden)"
    if isinstance(value, tuple):
        if value and isinstance(value[0], SecretStr):
            return f"(hidden, {len(value)})"
        return ",".join(map(str, value)) or "none"
    return "none" if value is None or value == "" else str(value)


def explain(item: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> str:
    """Turn one pydantic error into 'NAME=value is not allowed: ...', with where it was set."""
    if not item["loc"]:
        return str(item["msg"]).removeprefix("Value error, ")
    name = str(item["loc"][0]).lower()
    field = fields.get(name)
    if field is None:
        return f"{_place(name)} is not a setting; settings: {', '.join(fields)}"
    value = "(hidden)" if name in _SECRETS else repr(item["input"])
    return f"{_place(name)}={value} is not allowed; {field.description} (default {shown(field.default)})"


def _place(name: str) -> str:
    """Return the variable that sets a field, or its key and the file."""
    variable = f"{PREFIX}{name.upper()}"
    if os.environ.get(FILE) and not os.environ.get(variable):
        return f"{os.environ[FILE]}: {name}"
    return variable
