"""One version of a model, ready to be asked for samples."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import torch

from models.architectures import PROGRAM
from models.checkpoint.card import DTYPES
from models.checkpoint.loading import Card, Checkpoint
from models.decoder import Decoder
from models.inverse import Inverse
from models.noise import noise
from models.row_padding import RowCaller

_DECODED_AT_ONCE = 128  # rows


@dataclass(frozen=True)
class Served:
    """One version that can be asked for samples.

    Attributes:
        name, version: where it stands in the repository.
        digest: hash of its card and weights.
        card: what the checkpoint says of itself.
        decoder: what turns states into data.
        decode: the same for states (rows, *event_shape), on the CPU, each row from its own alone.
        deterministic: whether a sample's bits depend on checkpoint, solver, seed and index only.
        bytes: what its tensors take.
        path: what evaluates its network, `fused` or `eager`.
        path_reason: why it is not fused; empty if it is.
    """

    name: str
    version: int
    digest: str
    card: Card
    decoder: Decoder
    decode: RowCaller
    deterministic: bool
    bytes: int = 0
    path: str = "eager"
    path_reason: str = ""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of states."""
        return DTYPES[self.card.dtype]

    @property
    def data_dtype(self) -> torch.dtype:
        """The dtype of decoded samples."""
        return DTYPES[self.card.data_dtype]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """The shape of one state."""
        return tuple(self.card.event_shape)

    @property
    def plain(self) -> bool:
        """Whether states are data already, so that decoding changes nothing."""
        decoder = self.card.decoder
        return decoder.kind == "identity" and decoder.clip is None and decoder.event_shape == decoder.data_shape

    @cached_property
    def inverse(self) -> tuple[RowCaller, float]:
        """What turns data (rows, *data_shape) into states, and the log of the volume that decoding makes of 1.

        Raises:
            InverseError: decoding cannot be undone.
        """
        inverse = Inverse(self.decoder)
        probe = noise(1, 0, _DECODED_AT_ONCE, self.card.data_shape, self.data_dtype)
        return RowCaller(inverse.encode, (probe,), _DECODED_AT_ONCE), inverse.log_volume

    def describe(self) -> dict[str, Any]:
        """Return what ``GET /v1/models/{name}`` shows of this version."""
        card = self.card.model_dump(mode="json")
        if self.card.architecture.name == PROGRAM:  # thousands of steps help nobody
            config = card["architecture"]["config"]
            config["steps"], config["tensors"] = len(config["steps"]), len(config["tensors"])
        return {
            "version": self.version,
            "checkpoint": self.digest,
            "deterministic": self.deterministic,
            "path": self.path,
            "path_reason": self.path_reason,
            "card": card,
        }

    @classmethod
    def of(
        cls,
        name: str,
        version: int,
        checkpoint: Checkpoint,
        deterministic: bool,
        path: str = "eager",
        path_reason: str = "",
    ) -> Self:
        """Make a version of a checkpoint that the engine has taken in.

        Args:
            name: name of the model.
            version: its version.
            checkpoint: its decoder is moved to the CPU, where results arrive, and padded so that a decoded sample does
                not depend on how many there are.
            deterministic: what the engine found of the network.
            path, path_reason: how the engine evaluates it, and why not fused.
        """
        checkpoint.decoder.cpu()
        probe = noise(0, 0, _DECODED_AT_ONCE, checkpoint.card.event_shape, checkpoint.dtype)
        decode = RowCaller(checkpoint.decoder.decode, (probe,), _DECODED_AT_ONCE)
        both = decode.deterministic and deterministic
        tensors = [*checkpoint.velocity.state_dict().values(), *checkpoint.decoder.state_dict().values()]
        size = sum(tensor.nbytes for tensor in tensors)
        held = (checkpoint.digest, checkpoint.card, checkpoint.decoder, decode, both, size)
        return cls(name, version, *held, path, path_reason)

    def summary(self) -> dict[str, Any]:
        """Return what ``GET /v1/models`` shows of this version."""
        return {
            "version": self.version,
            "dtype": self.card.dtype,
            "event_shape": self.event_shape,
            "data_shape": self.card.data_shape,
            "deterministic": self.deterministic,
            "path": self.path,
        }
