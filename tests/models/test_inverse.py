"""Decoders backwards."""

import math

import pytest
import torch

from models.decoder import Decoder
from models.decoder import Inverse, InverseError
from models.noise import noise

X = noise(0, 0, 5, (3,), torch.float64)


def test_an_identity_only_reshapes():
    inverse = Inverse(Decoder.identity((6,), (2, 3)))
    data = noise(0, 0, 4, (2, 3))
    assert torch.equal(inverse.encode(data), data.reshape(4, 6))
    assert inverse.log_volume == 0.0


def test_scales_and_shifts_are_undone_and_the_volume_is_their_product():
    decoder = Decoder.affine(torch.tensor([2.0, -0.5, 4.0]).double(), torch.tensor([1.0, 2.0, 3.0]).double())
    inverse = Inverse(decoder)
    torch.testing.assert_close(inverse.encode(decoder.decode(X)), X)
    assert inverse.log_volume == pytest.approx(math.log(4.0))


@pytest.mark.parametrize("orthonormal", [True, False])
def test_components_are_undone_by_least_squares(orthonormal: bool):
    generator = torch.Generator().manual_seed(0)
    components = torch.randn(3, 8, generator=generator, dtype=torch.float64)
    if orthonormal:
        components = torch.linalg.qr(components.T)[0].T
    scale = torch.tensor([1.0, 2.0, 3.0]).double()
    decoder = Decoder.pca(torch.ones(8).double(), components, scale, (2, 4))
    inverse = Inverse(decoder)
    data = decoder.decode(X)
    torch.testing.assert_close(inverse.encode(data), X)
    # the volume of a unit cube's picture: root of the Gram determinant
    picture = scale[:, None] * components
    assert inverse.log_volume == pytest.approx(0.5 * float(torch.logdet(picture @ picture.T)))
    aside = data + torch.randn(8, generator=generator, dtype=torch.float64).reshape(2, 4)
    nearest = decoder.decode(inverse.encode(aside)).reshape(5, 8)
    rest = aside.reshape(5, 8) - nearest
    torch.testing.assert_close(rest @ components.T, torch.zeros(5, 3).double(), atol=1e-9, rtol=0)


def test_what_has_no_inverse_is_refused():
    with pytest.raises(InverseError, match="scale holds zeros"):
        Inverse(Decoder.affine(torch.tensor([1.0, 0.0]), torch.zeros(2)))
    with pytest.raises(InverseError, match="not linearly independent"):
        Inverse(Decoder.pca(torch.zeros(4), torch.ones(2, 4), torch.ones(2), (4,)))
    with pytest.raises(InverseError, match="latent_scale holds zeros"):
        Inverse(Decoder.pca(torch.zeros(4), torch.eye(4)[:2], torch.zeros(2), (4,)))
