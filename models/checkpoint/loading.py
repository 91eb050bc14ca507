"""Loading checkpoints: a folder `<name>/<version>/` of `weights.safetensors` and `card.json`, read and verified.

Nothing in it is executable and nothing is unpickled. It is distrusted in this order, so that no size that a file claims
is allocated before it is checked: the fields of the card; the hash of the weights; the names, types and shapes in their
header, against the architecture on torch's meta device; and only then the numbers. At last the network is evaluated.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

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
from models.checkpoint.plans import PlansError, read_plans
from models.checkpoint.weights import lacks_memory, read_weights
from models.compute import HALVES, Cast, to_half
from models.conventions import adapt
from models.decoder import Decoder
from models.messages import first_line
from models.mixing import find_mixing
from models.named_conditions import Conditioning, NamedCondition, NamedConditions
from models.network import Network
from models.noise import noise
from models.row_padding import RowByRow
from solvers.tuned import TunedPlans

_PROBE_ROWS = 2


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint in memory.

    Attributes:
        velocity: the network, in eval mode, without gradients for its weights; called as a `VelocityField`. It is
            wrapped if it has another convention (see `models.conventions`) or is called row by row (see
            `models.mixing`).
        decoder: turns samples into data.
        card: the description in its folder.
        path: its folder.
        digest: `sha256:` and the hash of the card, which stands for the weights too, as the card holds their hash.
        plans: solvers tuned for it; None where there are none that can be used.
        plans_fault: why plans that are there cannot be used; empty if they can.
        nulls: of named conditions, those that are stored.
    """

    velocity: nn.Module
    decoder: Decoder
    card: Card
    path: Path
    digest: str
    plans: TunedPlans | None = None
    plans_fault: str = ""
    nulls: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def conditioning(self) -> Conditioning | None:
        """What the network is conditioned on; None if it is unconditional."""
        takes = self.card.conditioning
        return replace(takes, stored=self.nulls) if isinstance(takes, NamedConditions) else takes

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the states."""
        return DTYPES[self.card.dtype]

    @property
    def compute(self) -> torch.dtype:
        """The dtype of the network's own arithmetic."""
        return self.dtype if self.card.compute is None else HALVES[self.card.compute]


def load(path: Path | str, device: torch.device | str = "cpu") -> Checkpoint:
    """Load a checkpoint and verify all of it.

    Args:
        path: the folder of one version.
        device: where the tensors go.

    Raises:
        CheckpointError: anything is missing, damaged, or not what the card says; an UnreadableCheckpoint if that cannot
            be told now, because the disk refuses or there is not enough memory.
    """
    path = Path(path)
    card = read_card(path)
    pair = _empty(card, path / CARD_FILE)
    _fill(pair, read_weights(path / WEIGHTS_FILE, card.weights_sha256, pair.state_dict()), path / WEIGHTS_FILE)
    try:
        pair.to(device)
    except (RuntimeError, AssertionError) as error:
        raise UnreadableCheckpoint(f"{path}: cannot be put on device {str(device)!r}: {first_line(error)}") from None
    pair.eval().requires_grad_(False)
    nulls = {name: tensor.cpu() for name, tensor in pair.nulls.named_buffers()}
    network = pair.velocity if card.compute is None else Cast(pair.velocity, HALVES[card.compute])
    velocity = adapt(network, card.time)
    if card.row_by_row:
        velocity = RowByRow(velocity)
    digest = f"sha256:{card.card_sha256}"
    plans = _plans(path, card.weights_sha256)
    checkpoint = Checkpoint(velocity, pair.decoder, card, path, digest, *plans, nulls=nulls)
    _probe(checkpoint, torch.device(device))
    return checkpoint


def _plans(folder: Path, weights_sha256: str) -> tuple[TunedPlans | None, str]:
    """The plans beside the weights, and why they cannot be used; a checkpoint is sound without them."""
    try:
        found = read_plans(folder, weights_sha256)
    except PlansError as error:
        return None, str(error)
    return (None if found is None else found.tuned()), ""


class _Pair(nn.Module):
    """The modules whose tensors are in the weights file, under `velocity.`, `decoder.` and `nulls.`."""

    def __init__(self, velocity: Network, decoder: Decoder, conditions: Mapping[str, NamedCondition]) -> None:
        super().__init__()
        self.velocity = velocity
        self.decoder = decoder
        self.nulls = nn.Module()
        for name, condition in conditions.items():
            if condition.null == "stored":
                self.nulls.register_buffer(name, torch.zeros(condition.sizes, dtype=condition.torch_dtype))


def _empty(card: Card, file: Path) -> _Pair:
    """Build what the card describes on the meta device, which allocates nothing."""
    try:
        with torch.device("meta"):
            pair = _Pair(
                build(card.architecture.name, card.architecture.config), Decoder(card.decoder), card.conditions
            )
    except ArchitectureError as error:
        raise CheckpointError(f"{file}: architecture: {error}") from None
    if card.event_shape != (expected := pair.velocity.event_shape):
        raise CheckpointError(
            f"{file}: event_shape: found {list(card.event_shape)}, the architecture has {list(expected)}"
        )
    if card.conditioning != (takes := pair.velocity.condition):
        raise CheckpointError(f"{file}: condition: found {card.conditioning!r}, the architecture has {takes!r}")
    if card.average != pair.velocity.average:
        found = "average_velocity" if pair.velocity.average else "velocity"
        raise CheckpointError(f"{file}: field: found {card.field}, the architecture's config has {found}")
    if card.compute is None:
        pair.velocity.to(DTYPES[card.dtype])
    else:
        to_half(pair.velocity, card.compute)
    pair.decoder.to(DTYPES[card.data_dtype])
    return pair


def _fill(module: _Pair, tensors: dict[str, Tensor], file: Path) -> None:
    """Put the tensors into a module on the meta device; none of its keys may be missing."""
    masks = module.velocity.may_hold_infinities
    for key, tensor in tensors.items():
        if tensor.isnan().any() or not ((masks and key.startswith("velocity.")) or tensor.isfinite().all()):
            raise CheckpointError(f"{file}: key {key}: holds numbers that are not finite")
    module.load_state_dict(tensors, assign=True)


def _probe(checkpoint: Checkpoint, device: torch.device) -> None:
    """Evaluate the velocity at t = 0, 0.5 and 1 and the decoder on starting noise.

    Both must be finite, and the velocity of a row must not depend on the rows beside it.
    """
    card = checkpoint.card
    sizes = card.typical
    event = card.event_of(sizes)
    x = noise(0, 0, _PROBE_ROWS, event, checkpoint.dtype).to(device)
    takes = None if checkpoint.conditioning is None else checkpoint.conditioning.sized(sizes)
    given = None if takes is None else takes.examples(_PROBE_ROWS, x.dtype, device)
    try:
        with torch.no_grad():
            for t in (0.0, 0.5, 1.0):
                times = torch.full((_PROBE_ROWS,), t, dtype=x.dtype, device=device)
                if card.average:
                    times = torch.stack((times, torch.ones_like(times)), dim=1)
                v = checkpoint.velocity(x, times, given)
                _must_be(f"{checkpoint.path}: the velocity at t = {t:g}", v, tuple(x.shape), x.dtype)
            shape = (_PROBE_ROWS, *card.data_of(sizes))
            decoded = checkpoint.decoder.decode(x)
            _must_be(f"{checkpoint.path}: the decoder", decoded, shape, DTYPES[card.data_dtype])
        mixing = None
        if not card.row_by_row:
            mixing = find_mixing(checkpoint.velocity, event, checkpoint.dtype, device, takes, checkpoint.compute)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        kind = UnreadableCheckpoint if lacks_memory(error) else CheckpointError
        raise kind(f"{checkpoint.path}: the probe failed: {first_line(error)}") from None
    if mixing is not None:
        raise CheckpointError(f"{checkpoint.path}: {mixing}")


def _must_be(what: str, found: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(found.shape) != shape or found.dtype != dtype:
        raise CheckpointError(
            f"{what}: found {found.dtype} of shape {list(found.shape)}, expected {dtype} of shape {list(shape)}"
        )
    if not found.isfinite().all():
        raise CheckpointError(f"{what}: is not finite on starting noise")
