"""Where settings come from: the environment and one TOML file; and what is said of a value that is refused.

One rule for all of them, wherever they come from: space around a text, such as the line break at the end of a mounted
file, does not count; a control character inside of it is refused; nothing but space stands for the default. Only keys
are never left blank: a secret that did not arrive must not open the service.
"""

import os
import tomllib
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

PREFIX = "PATHLINE_"
FILE = f"{PREFIX}SETTINGS"
"""The variable that names a file of settings."""

_OTHERS = {FILE, f"{PREFIX}URL", f"{PREFIX}API_KEY"}  # no settings of the service: the last two are the SDK's
_SECRETS = ("api_keys", "admin_key")
_LISTS = ("api_keys", "cors_origins", "allowed_hosts")


class SettingsError(ValueError):
    """A setting has a value that is not allowed; the message is one line for the person who set it."""


def settings_sources(
    settings: type[BaseSettings], given: PydanticBaseSettingsSource, environment: PydanticBaseSettingsSource
) -> tuple[PydanticBaseSettingsSource, ...]:
    """Return where settings come from, the first that has one wins: arguments, the environment, the file it names.

    Raises:
        SettingsError: There is no such file, it cannot be read, or it is not TOML.
    """
    found = (Tidied(settings, given, str), Tidied(settings, environment, _variable))
    name = _file()
    if not name:
        return found
    try:
        content = tomllib.loads(Path(name).read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SettingsError(f"{FILE}={name!r} cannot be read: {error.strerror}; name a TOML file") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{FILE}={name!r} is not UTF-8; write it as a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{FILE}={name!r} is not TOML: {error}; write lines like port = 8000") from None
    return (*found, Tidied(settings, InitSettingsSource(settings, content), lambda field: f"{name}: {field}"))


def _file() -> str:
    return os.environ.get(FILE, "").strip()


def _variable(field: str) -> str:
    return f"{PREFIX}{field.upper()}"


class Tidied(PydanticBaseSettingsSource):
    """Settings of one source as they are meant: text without space around it, lists taken apart, blank ones left out.

    Args:
        settings: The settings.
        source: Where they come from.
        place: Name of a setting there, from that of its field.
    """

    def __init__(
        self, settings: type[BaseSettings], source: PydanticBaseSettingsSource, place: Callable[[str], str]
    ) -> None:
        super().__init__(settings)
        self._source, self._place = source, place

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """Return what the source says of a field."""
        return self._source.get_field_value(field, field_name)

    def __call__(self) -> dict[str, Any]:
        """Return the settings by name.

        Raises:
            SettingsError: A text holds a control character, or a key is blank.
        """
        tidied = {name: self._tidy(name, value) for name, value in self._source().items()}
        return {name: value for name, value in tidied.items() if value != ""}

    def _tidy(self, name: str, value: Any) -> Any:
        if name in _LISTS and isinstance(value, str):
            value = tuple(filter(None, map(str.strip, value.split(",")))) or ""
        value = _stripped(value)
        if value == "" and name in _SECRETS:
            raise SettingsError(f"{self._place(name)} is set but blank; give it a key, or unset it to have none")
        for text in value if isinstance(value, list | tuple) else [value]:
            found = [letter for letter in text if unicodedata.category(letter) == "Cc"] if isinstance(text, str) else []
            if found:
                commas = ", with commas between several" if name in _LISTS else ""
                raise SettingsError(
                    f"{self._place(name)} has a control character ({found[0]!r}) inside; write it on one line{commas}"
                )
        return value


def _stripped(value: Any) -> Any:
    if isinstance(value, str):
        return value.strip()
    return [_stripped(item) for item in value] if isinstance(value, list) else value


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
    file, variable = _file(), _variable(name)
    return f"{file}: {name}" if file and not os.environ.get(variable, "").strip() else variable
