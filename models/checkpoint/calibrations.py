"""The file `calibration.json` of a checkpoint: numbers of rows that agree, kept for the next load.

Entries are bound to the checkpoint's hash, torch, the kind of CPU and the number of threads. The file is a cache: if it
cannot be read or written, the network is measured again.
"""

from __future__ import annotations

import contextlib
import json
import logging
import platform
from functools import cache
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from models.calibration import Agreement
from models.regular import NotRegular, open_inside, write_atomically

CALIBRATION_FILE = "calibration.json"

_MAX_BYTES = 1 << 20
_MAX_ENTRIES = 64
_log = logging.getLogger("pathline")

Key = tuple[str, ...]


class _Entry(BaseModel):
    """One measurement: the form of the network, and the result."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    key: Key
    form: int = Field(ge=0)
    counts: tuple[int, ...] = Field(min_length=1)
    buckets: tuple[int, ...]
    limit: int = Field(ge=1)

    def agreement(self) -> Agreement:
        return Agreement(self.counts, self.buckets, self.limit, complete=True)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    format: int = Field(default=1, ge=1, le=1)
    entries: tuple[_Entry, ...] = ()


def key_of(digest: str, device: torch.device, *what: str) -> Key:
    """Return the key of a checkpoint's measurement on this machine with the current number of torch threads.

    Args:
        digest: hash of the checkpoint.
        device: the checkpoint's device.
        what: the function of it that was measured.
    """
    place = _cpu() if device.type == "cpu" else torch.cuda.get_device_name(device)
    return (digest, f"torch {torch.__version__}", place, f"{torch.get_num_threads()} threads", *what)


@cache
def _cpu() -> str:
    """Return the kind of CPU, with the instruction set that torch uses on it."""
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"


def known(folder: Path, key: Key) -> tuple[int, Agreement] | None:
    """Return the form and the agreement stored under a key; None if there are none."""
    entry = next((entry for entry in _read(folder).entries if entry.key == key), None)
    return None if entry is None else (entry.form, entry.agreement())


def keep(folder: Path, key: Key, form: int, agreement: Agreement) -> None:
    """Store a complete measurement in which some numbers of rows agree; only log a failure to write the file."""
    if not agreement.complete or not agreement.counts:
        return
    entry = _Entry(key=key, form=form, counts=agreement.counts, buckets=agreement.buckets, limit=agreement.limit)
    others = [each for each in _read(folder).entries if each.key != key]
    content = _File(entries=(entry, *others)[:_MAX_ENTRIES]).model_dump_json(indent=1)
    try:
        write_atomically(folder / CALIBRATION_FILE, content.encode() + b"\n")
    except OSError as error:
        _log.info(
            "%s: cannot be written (%s); the network is measured again at the next start",
            folder / CALIBRATION_FILE,
            error.strerror,
        )


def _read(folder: Path) -> _File:
    try:
        with open_inside(folder, CALIBRATION_FILE) as file:
            content: Any = json.loads(file.read(_MAX_BYTES))
        return _File.model_validate(content)
    except (OSError, NotRegular, ValueError, RecursionError, ValidationError):
        return _File()
