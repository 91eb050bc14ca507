"""State of a run on disk: one safetensors file with a JSON header, replaced as a whole.

The file has the tensors (weights, their moving average, Adam's moments) and, in its header, the JSON (step, loss so
far, hashes of recipe and data). Two files could not be replaced in one rename. Random generators are not saved, because
every random number is a function of the seed and the step (`training.draws`).

The file has a checksum of all of this, because a weight with a flipped bit is still a number: a run would resume from
it and silently publish a worse model.
"""

import fcntl
import hashlib
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from models.regular import remove_stale, unfinished, write_atomically
from training.errors import StateError
from training.folders import make_writable


class Header(BaseModel):
    """The JSON part of a state.

    Attributes:
        recipe: hash of the recipe.
        data: sha256 of the training samples.
        step: steps done.
        loss_sum: sum of the losses of the current epoch's steps so far.
        last_loss: mean loss of the last whole epoch; None in the first.
        seconds: time spent in steps so far, in seconds, over all processes that worked on the run.
        threads: number of torch threads, which a resumed run uses too; a different number would change the last bits.
        device: `cpu` or `cuda`.
        losses: mean loss of each whole epoch.
        validations: step and held-out loss by time, see `training.flow_matching.Validation`.
        best: step and held-out loss of the best weights, if they are kept.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipe: str
    data: str
    step: int = Field(ge=0)
    loss_sum: float
    last_loss: float | None
    seconds: float
    threads: int
    device: str
    losses: list[float] = []
    validations: list[tuple[int, list[float]]] = []
    best: tuple[int, float] | None = None


class RunFolder:
    """The folder of one run, `<runs>/<name>-<recipe hash>`; it is deleted when the model is published."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "state.safetensors"

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the folder and lock it; the lock is released when the process ends, however it ends.

        Raises:
            StateError: another process is training this run.
            TrainingError: the folder cannot be written to.
        """
        make_writable(self.folder, "run folder")
        with (self.folder / "lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise StateError(f"another process is training in {self.folder}; wait for it or stop it") from None
            remove_stale(unfinished(self.file), older_s=0.0)  # a state is large, and its writer is dead
            try:
                yield
            finally:
                if not self.file.exists():
                    self.remove()  # nothing to resume: published, or stopped before the first state

    def write(self, tensors: dict[str, Tensor], header: Header) -> None:
        """Replace the state.

        Raises:
            StateError: it could not be written; the previous state is untouched.
        """
        state = header.model_dump_json()
        content = save(tensors, {"state": state, "sha256": _checksum(tensors, state)})
        try:
            write_atomically(self.file, content)
        except OSError as error:
            earlier = self.file.exists()
            left, then = ("; the last state written is kept", "to resume") if earlier else ("", "again")
            raise StateError(
                f"state {self.file} cannot be written: {error.strerror}{left}. Make room there and run the same "
                f"command {then}"
            ) from None

    def read(self) -> tuple[dict[str, Tensor], Header] | None:
        """Return the state, or None if there is none.

        Raises:
            StateError: the file is damaged or not a state.
        """
        if not self.file.exists():
            return None
        try:
            with safe_open(self.file, framework="pt") as file:
                metadata: dict[str, str] = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            checksum = _checksum(tensors, metadata["state"])
            if checksum != metadata["sha256"]:
                raise ValueError(f"its content has sha256 {checksum}; {metadata['sha256']} was recorded")
            return tensors, Header.model_validate(json.loads(metadata["state"]))
        except (OSError, SafetensorError, KeyError, ValueError, ValidationError) as error:
            reason = str(error).splitlines()[0]
            raise StateError(
                f"state {self.file} is damaged ({reason}); restore a copy of it, or delete {self.folder} to train "
                "from the start"
            ) from None

    def remove(self) -> None:
        """Delete the folder: the run is over and published."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _checksum(tensors: dict[str, Tensor], state: str) -> str:
    """Return the SHA-256 of the JSON and of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name].contiguous()
        digest.update(f"\0{name} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
