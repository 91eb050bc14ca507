"""Packed parameters of a residual MLP for the compiled loops: aligned, and padded with zeros to whole vectors."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from models.architectures.residual_mlp import Bare, ResidualMLP
from models.forms.fused.pieces import BYTES, PANEL
from models.forms.fused.vectors import LANES

Floats = NDArray[np.float32]


def packed(network: ResidualMLP, bare: Bare) -> list[Floats]:
    """Return the parameters in the order in which the compiled network reads them."""
    frequencies = _array(bare.frequencies)
    half, wide = len(frequencies), room(len(frequencies))
    of_time = np.zeros((network.config.hidden, 2 * wide), np.float32)
    weights, shift = (_array(tensor) for tensor in bare.time)
    of_time[:, :half], of_time[:, wide : wide + half] = weights[:, :half], weights[:, half:]
    into = [of_time, _array(bare.input[0])]
    bias = (shift.astype(np.float64) + _array(bare.input[1])).astype(np.float32)
    table = np.zeros((1, network.config.hidden), np.float32)
    if (embedding := bare.embed_condition) is not None:
        if embedding.config.classes is not None:
            table = _array(embedding.table.weight)
        else:
            into.append(_array(embedding.linear.weight))
            null = embedding.null if embedding.config.nullable else embedding.linear.bias
            table = np.stack((_array(embedding.linear.bias), _array(null)))
    parts = [_vectors(frequencies), _vectors(table), _panels(np.concatenate(into, 1)), _vectors(bias)]
    for norm, first, second in bare.blocks:
        parts += [_vectors(_array(norm[1])), _vectors(_array(norm[2]))]
        parts += [
            part for weight, bias in (first, second) for part in (_panels(_array(weight)), _vectors(_array(bias)))
        ]
    parts += [_vectors(_array(bare.norm[1])), _vectors(_array(bare.norm[2]))]
    return [*parts, _panels(_array(bare.output[0])), _vectors(_array(bare.output[1]))]


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().numpy()


def room(length: int) -> int:
    """A length rounded up to whole vectors."""
    return -(-length // LANES) * LANES


def _vectors(array: Floats) -> Floats:
    """Pad numbers (..., n) with zeros to whole vectors."""
    padded = aligned_zeros(array[..., 0].size * room(array.shape[-1])).reshape(*array.shape[:-1], -1)
    padded[..., : array.shape[-1]] = array
    return padded


def _panels(weights: Floats) -> Floats:
    """Arrange weights (outputs, terms) as panels of 16 outputs: (panels, terms, 16)."""
    outputs, terms = weights.shape
    packed = aligned_zeros(room(outputs) * terms).reshape(-1, terms, LANES)
    padded = np.zeros((room(outputs), terms), np.float32)
    padded[:outputs] = weights
    packed[:] = padded.reshape(-1, LANES, terms).transpose(0, 2, 1)
    return packed


def aligned_zeros(count: int) -> Floats:
    """Make zeros that begin at a cache line."""
    memory = np.zeros(count + LANES, np.float32)
    skip = -memory.ctypes.data % PANEL // BYTES
    return memory[skip : skip + count]
