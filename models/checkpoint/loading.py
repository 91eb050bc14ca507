"""Loading checkpoints: a folder `<name>/<version>/` of `weights.safetensors` and `card.json`, read and verified.

Nothing in it is executable and nothing is unpickled. It is verified in this order, so that no size that a file claims
is allocated before it is checked: the fields of the card; the hash of the weights; the names, types and shapes in their
header, against the architecture on torch's meta device; and only then the numbers. Finally, the network is evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from models.architectures import ArchitectureError, build
from models.checkpoint.card import (
    CARD_FILE,
    DTYPES,
    WEIGHTS_FILE,
    Card,
    CheckpointError,
    UnreadableCheckpoint,
    read_card,
)
from models.checkpoint.plans import tuned_plans
from models.checkpoint.weights import Modules, lacks_memory, read_weights
from models.compute import HALVES, Cast
from models.conditions import NamedConditions
from models.conventions import adapt
from models.decoder import Decoder
from models.messages import first_line
from models.mixing import find_mixing
from models.noise import noise
from models.prelude import Prelude
from models.program import PROGRAM
from models.velocity import Condition
from solvers.tuned import TunedPlans

_TRIAL_ROWS = 2


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory.

    Attributes:
        velocity: the network, in eval mode, without gradients for its weights; called as a `VelocityField`. It is
            wrapped if it has another convention (see `models.conventions`) or computes in half precision.
        decoder: turns samples into data.
        card: the description in its folder.
        path: its folder.
        digest: `sha256:` and the hash of the card, which covers the weights too, as the card contains their hash.
        plans: solvers tuned for it; None if there are none that can be used.
        plans_fault: why existing plans cannot be used; empty if they can.
        nulls: the stored nulls of named conditions.
        prelude: makes some conditions of the network from those of requests; None if there is no such program.
        half: the half precision that its network computes in; None for full precision.
    """

    velocity: nn.Module
    decoder: Decoder
    card: Card
    path: Path
    digest: str
    plans: TunedPlans | None = None
    plans_fault: str = ""
    nulls: Mapping[str, Tensor] = field(default_factory=dict)
    prelude: Prelude | None = None
    half: Literal["bfloat16", "float16"] | None = None

    @property
    def network_conditions(self) -> NamedConditions | None:
        """The conditioning of the network; None if it is unconditional."""
        return self._with_nulls(self.card.network_conditions)

    @property
    def request_conditions(self) -> NamedConditions | None:
        """The conditioning that requests give; None if the network is unconditional."""
        return self._with_nulls(self.card.request_conditions)

    def examples(self, rows: int, device: torch.device | str = "cpu") -> Condition | None:
        """Make conditions for some rows as the network takes them, distinct where possible; None if it takes none."""
        takes, requested = self.network_conditions, self.request_conditions
        if takes is None or requested is None:
            return None
        takes = takes.sized({})
        examples = takes.examples(rows, self.dtype, device)
        if self.prelude is None:
            return examples
        results = self.prelude.call(takes, *self.prelude.examples(requested, rows, self.dtype, device))
        tensors = dict(zip(takes.entries, takes.unpack(examples), strict=True))
        tensors |= zip(self.prelude.outputs, results, strict=True)
        return takes.pack(list(tensors.values()))

    def _with_nulls(self, takes: NamedConditions | None) -> NamedConditions | None:
        return None if takes is None else replace(takes, stored=self.nulls)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the states."""
        return DTYPES[self.card.dtype]

    @property
    def compute(self) -> torch.dtype:
        """The dtype of the network's own arithmetic."""
        return self.dtype if self.half is None else HALVES[self.half]


def load(
    path: Path | str, device: torch.device | str = "cpu", compute: Literal["auto", "float32"] = "auto"
) -> Checkpoint:
    """Load a checkpoint and verify all of it.

    Args:
        path: the folder of one version.
        device: where the tensors go.
        compute: `float32` makes half-precision networks compute in float32, except programs, where the dtypes are part
            of the steps; `auto` follows the card.

    Raises:
        CheckpointError: anything is missing, damaged, or not what the card says; an UnreadableCheckpoint if that cannot
            be determined now, because reading fails or there is not enough memory.
    """
    path = Path(path)
    card = read_card(path)
    modules, file = _empty(card, path / CARD_FILE), path / WEIGHTS_FILE
    tensors = read_weights(file, card.weights_sha256, modules.stored(DTYPES[card.dtype], card.compute))
    try:
        modules.check_finite(tensors)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}") from None
    modules.load_state_dict(tensors, assign=True)
    try:
        modules.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UnreadableCheckpoint(f"{path}: cannot be moved to device {str(device)!r}: {first_line(error)}") from None
    modules.eval().requires_grad_(False)
    nulls = {name: tensor.cpu() for name, tensor in modules.nulls.named_buffers()}
    half = card.compute
    if half is not None and compute == "float32" and card.architecture.name != PROGRAM:
        modules.velocity.float()
        half = None
    network = modules.velocity if half is None else Cast(modules.velocity, HALVES[half])
    velocity = adapt(network, card.time)
    digest = f"sha256:{card.card_sha256}"
    plans = tuned_plans(path, card.weights_sha256)
    checkpoint = Checkpoint(velocity, modules.decoder, card, path, digest, *plans, nulls, modules.prelude, half)
    _check_finite(checkpoint, torch.device(device))
    return checkpoint


def _empty(card: Card, file: Path) -> Modules:
    """Build what the card describes on the meta device, which allocates nothing."""
    try:
        with torch.device("meta"):
            network = build(card.architecture.name, card.architecture.config)
            prelude = None if card.prelude is None else Prelude(card.prelude)
            entries = {} if card.request_conditions is None else card.request_conditions.entries
            stored = {name: entry for name, entry in entries.items() if entry.null == "stored"}
            nulls = {name: torch.zeros(entry.sizes, dtype=entry.torch_dtype) for name, entry in stored.items()}
            modules = Modules(network, Decoder(card.decoder), prelude, nulls)
    except ArchitectureError as error:
        raise CheckpointError(f"{file}: architecture: {error}") from None
    for name, stated, built in (
        ("event_shape", list(card.event_shape), list(network.event_shape)),
        ("conditions", card.network_conditions, network.condition),
        ("field", card.field, network.field),
    ):
        if stated != built:
            raise CheckpointError(f"{file}: {name}: found {stated}, the architecture has {built}")
    return modules


def _check_finite(checkpoint: Checkpoint, device: torch.device) -> None:
    """Evaluate the velocity at t = 0, 0.5 and 1 and the decoder on starting noise.

    Both must be finite, and the velocity of a row must not depend on the rows beside it.
    """
    card = checkpoint.card
    event = card.event_of(card.typical)
    x = noise(0, 0, _TRIAL_ROWS, event, checkpoint.dtype).to(device)
    takes, requested = checkpoint.network_conditions, checkpoint.request_conditions
    takes = None if takes is None else takes.sized({})
    try:
        with torch.no_grad():
            conditions = checkpoint.examples(_TRIAL_ROWS, device)
            for t in (0.0, 0.5, 1.0):
                times = card.field.times(torch.full((_TRIAL_ROWS,), t, dtype=x.dtype, device=device))
                v = checkpoint.velocity(x, times, conditions)
                _check_tensor(f"{checkpoint.path}: the velocity at t = {t:g}", v, tuple(x.shape), x.dtype)
            shape = (_TRIAL_ROWS, *card.data_of(card.typical))
            decoded = checkpoint.decoder.decode(x)
            _check_tensor(f"{checkpoint.path}: the decoder", decoded, shape, DTYPES[card.data_dtype])
        mixing = find_mixing(checkpoint.velocity, event, checkpoint.dtype, device, takes, checkpoint.compute)
        if mixing is None and card.decoder.program is not None:
            mixing = checkpoint.decoder.find_mixing(checkpoint.dtype, device, card.typical)
        if mixing is None and checkpoint.prelude is not None and takes is not None and requested is not None:
            mixing = checkpoint.prelude.find_mixing(requested, takes, checkpoint.dtype, device)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        kind = UnreadableCheckpoint if lacks_memory(error) else CheckpointError
        raise kind(f"{checkpoint.path}: the trial call failed: {first_line(error)}") from None
    if mixing is not None:
        raise CheckpointError(f"{checkpoint.path}: {mixing}")


def _check_tensor(what: str, tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(tensor.shape) != shape or tensor.dtype != dtype:
        raise CheckpointError(
            f"{what}: found {tensor.dtype} of shape {list(tensor.shape)}, expected {dtype} of shape {list(shape)}"
        )
    if not tensor.isfinite().all():
        raise CheckpointError(f"{what}: is not finite on starting noise")
