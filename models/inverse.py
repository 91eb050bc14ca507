"""From data to a sample of the flow: the inverse of a decoder, where there is one."""

import math

import torch
from torch import Tensor

from models.decoder import Decoder


class InverseError(ValueError):
    """A decoder has no inverse: it maps different samples to the same data."""


class Inverse:
    """What turns data into samples of the flow, such that decoding gives the data back.

    Clipping is not undone, as what it cut off is not known. Principal components keep of the data what they span, so
    that decoding gives the nearest point that a sample can have.

    Attributes:
        log_volume: log of the volume that decoding makes of a unit volume: what is subtracted from the log-density of
            a sample to get that of its data (in the space that the components span, for `pca`).
    """

    def __init__(self, decoder: Decoder) -> None:
        """Prepare the inverse.

        Raises:
            InverseError: there is none.
        """
        config = decoder.config
        self._kind, self._event_shape = config.kind, config.event_shape
        self.log_volume = 0.0
        if config.kind == "affine":
            self._scale, self._shift = decoder.scale, decoder.shift
            self.log_volume = _log_sum(decoder.scale, "scale")
        elif config.kind == "pca":
            components = decoder.components.double()
            singular = torch.linalg.svdvals(components)
            if not len(singular) or singular[-1] <= 1e-10 * singular[0]:
                raise InverseError("its components are not linearly independent")
            self._mean, self._scale = decoder.mean, decoder.latent_scale
            self._back = torch.linalg.pinv(components).to(decoder.components.dtype)
            self.log_volume = _log_sum(decoder.latent_scale, "latent_scale") + float(singular.log().sum())

    def encode(self, data: Tensor) -> Tensor:
        """Turn data (rows, *data_shape) into samples (rows, *event_shape), in the dtype of the data.

        Data of a decoder that works in float64 should be float64; round the samples to the states' type then.
        """
        flat = data.reshape(len(data), -1)
        if self._kind == "affine":
            flat = (flat - self._shift) / self._scale
        elif self._kind == "pca":
            flat = ((flat - self._mean) @ self._back) / self._scale
        return flat.reshape(len(data), *self._event_shape)


def _log_sum(scale: Tensor, name: str) -> float:
    if bool((scale == 0).any()):
        raise InverseError(f"its {name} holds zeros")
    return math.fsum(scale.double().abs().log().tolist())
