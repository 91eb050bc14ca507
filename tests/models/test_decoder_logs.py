"""Columns that a flow sees by their logarithm."""

import math

import pytest
import torch

from models.decoder import ColumnCard, Decoder, DecoderConfig, Inverse

COLUMNS = (
    ColumnCard(name="price", low=1.0, high=9.0, transform="log"),
    ColumnCard(name="x", low=-1.0, high=1.0),
    ColumnCard(name="rooms", kind="whole", low=0.0, high=30.0, transform="log1p"),
)


@pytest.fixture
def decoder() -> Decoder:
    scale, shift = torch.tensor([[0.5, 2.0, 0.7], [3.0, 0.1, 1.0]], dtype=torch.float64)
    return Decoder.affine(scale, shift, dtype="float64", columns=COLUMNS)


def test_no_sample_is_negative_and_whole_columns_stay_whole(decoder: Decoder):
    x = 20 * torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    price, plain, rooms = decoder.decode(x).T
    torch.testing.assert_close(price, (0.5 * x[:, 0] + 3.0).exp())
    torch.testing.assert_close(plain, 2.0 * x[:, 1] + 0.1)
    assert bool((rooms == rooms.round()).all())
    assert rooms.min() >= 0
    assert rooms.max() <= 30
    far = decoder.decode(torch.tensor([[1e6, 0.0, 1e6], [-1e6, 0.0, -1e6]]))
    assert bool(far.isfinite().all())


def test_data_are_encoded_back_and_their_volume_is_that_of_the_jacobian(decoder: Decoder):
    smooth = Decoder.affine(
        decoder.scale,
        decoder.shift,
        dtype="float64",
        columns=tuple(c.model_copy(update={"kind": "number"}) for c in COLUMNS),
    )
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).abs()
    data, inverse = smooth.decode(x), Inverse(smooth)
    torch.testing.assert_close(inverse.encode(data), x)
    jacobians = [torch.autograd.functional.jacobian(lambda row: smooth.decode(row[None])[0], row) for row in x]
    expected = torch.stack([jacobian.det().abs().log() for jacobian in jacobians])  # type: ignore[union-attr]
    torch.testing.assert_close(inverse.log_volume(data), expected)


def test_data_that_no_sample_decodes_to_are_finite_states(decoder: Decoder):
    states = Inverse(decoder).encode(torch.tensor([[-1.0, 0.0, -5.0]], dtype=torch.float64))
    assert bool(states.isfinite().all())


def test_a_card_has_a_transform_only_where_there_is_one(decoder: Decoder):
    written = decoder.config.model_dump(mode="json")["columns"]
    assert [column.get("transform", "-") for column in written] == ["log", "-", "log1p"]
    assert DecoderConfig.model_validate(decoder.config.model_dump()) == decoder.config
    plain = Decoder.affine(torch.tensor([2.0, math.e]), torch.zeros(2))
    assert Inverse(plain).log_volume(torch.zeros(3, 2)).tolist() == pytest.approx([math.log(2) + 1] * 3)
