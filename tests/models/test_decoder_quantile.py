"""Columns that a flow sees by their quantiles."""

import numpy as np
import pytest
import torch

from models.decoder import KNOTS, ColumnCard, Decoder, DecoderConfig, Inverse, InverseError, Transform
from training.data_config import VectorsData
from training.spaces import columns_of, standardised

KINDS: dict[str, Transform | None] = {"x": "quantile", "y": None, "price": "log", "z": "quantile"}
COLUMNS = tuple(ColumnCard(name=name, low=-9.0, high=9.0, transform=kind) for name, kind in KINDS.items())


@pytest.fixture
def decoder() -> Decoder:
    scale, shift = torch.tensor([[0.5, 2.0, 0.7, 1.5], [0.3, 0.1, 1.0, 0.0]], dtype=torch.float64)
    ends = torch.linspace(-3, 3, KNOTS, dtype=torch.float64).expand(2, KNOTS)
    return Decoder.affine(
        scale, shift, dtype="float64", columns=COLUMNS, knots=torch.stack([ends, torch.sinh(2 * ends)])
    )


def test_data_are_encoded_back_and_their_volume_is_that_of_the_jacobian(decoder: Decoder):
    x = 4 * torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))  # beyond the knots, too
    data, inverse = decoder.decode(x), Inverse(decoder)
    inner = (x[:, 0] * 0.5 + 0.3).abs() < 3
    torch.testing.assert_close(data[inner, 0], torch.sinh(x[inner, 0] + 0.6), atol=0.01, rtol=0.001)
    assert bool((data[x[:, 0].argsort(), 0].diff() > 0).all())
    torch.testing.assert_close(inverse.encode(data), x)
    jacobians = [torch.autograd.functional.jacobian(lambda row: decoder.decode(row[None])[0], row) for row in x]
    expected = torch.stack([jacobian.det().abs().log() for jacobian in jacobians])  # type: ignore[union-attr]
    torch.testing.assert_close(inverse.log_volume(data), expected)


def test_knots_are_tensors_of_the_checkpoint_and_must_ascend_to_be_undone(decoder: Decoder):
    again = Decoder(DecoderConfig.model_validate(decoder.config.model_dump()))
    assert again.knots.shape == (2, 2, KNOTS)
    again.load_state_dict({**decoder.state_dict(), "knots": torch.zeros(2, 2, KNOTS)})
    with pytest.raises(InverseError, match="do not ascend"):
        Inverse(again)
    again.load_state_dict(decoder.state_dict())
    x = torch.randn(5, 4)
    assert torch.equal(again.decode(x), decoder.decode(x))


def test_noise_is_decoded_to_long_tails_and_to_two_peaks():
    random = np.random.default_rng(0)
    tails, peaks = random.standard_t(2, 2000), random.normal(np.where(random.random(2000) < 0.4, -5, 5), 0.3)
    rows = np.stack([tails, peaks, random.normal(size=2000)], axis=1).round(4)
    config = VectorsData(name="vectors", quantile=["peaks"])
    columns = columns_of(["tails", "peaks", "normal"], {"tails": "%"}, rows, rows[:200], config)
    assert [(column.transform, column.decimals, column.unit) for column in columns] == [
        ("quantile", 4, "%"), ("quantile", 4, None), (None, 4, None)
    ]  # fmt: skip
    space = standardised(rows, rows[:200], columns, "t.csv")
    np.testing.assert_allclose(space.train.std(0), 1.0, atol=1e-3)
    noise = torch.from_numpy(random.normal(size=(20_000, 3))).float()
    samples = space.decoder.decode(noise).numpy()
    levels = [0.005, 0.05, 0.5, 0.95, 0.995]
    np.testing.assert_allclose(np.quantile(samples[:, 0], levels), np.quantile(tails, levels), atol=0.15, rtol=0.1)
    assert (np.abs(samples[:, 1]) < 3).mean() < 0.01, "between the peaks"
    assert abs((samples[:, 1] < 0).mean() - 0.4) < 0.03
    back = space.decoder.decode(torch.from_numpy(space.train)).numpy()
    np.testing.assert_allclose(back, rows, rtol=1e-4, atol=1e-4)
