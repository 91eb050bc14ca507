import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from models.decoder import ColumnCard, Decoder, DecoderConfig, DecoderError, Inverse, InverseError
from models.noise import noise
from models.program.steps import Function, FunctionConfig

X = noise(0, 0, 5, (3,), torch.float64)


def test_identity_reshapes_and_clips() -> None:
    decoder = Decoder.identity((4,), (2, 2), clip=(0.0, 1.0))
    x = torch.tensor([[-1.0, 0.5, 2.0, 1.0]])
    assert decoder.decode(x).tolist() == [[[0.0, 0.5], [1.0, 1.0]]]
    assert decoder.data_shape == (2, 2)
    assert Decoder.identity((3,)).data_shape == (3,)


def test_affine_scales_then_shifts() -> None:
    decoder = Decoder.affine(torch.tensor([2.0, 3.0]), torch.tensor([1.0, -1.0]))
    assert decoder.decode(torch.tensor([[1.0, 1.0], [0.0, 2.0]])).tolist() == [[3.0, 2.0], [1.0, 5.0]]


def test_scales_spread_over_free_axes_and_their_volume_counts_the_places() -> None:
    scale, shift = torch.tensor([[2.0], [-0.5], [4.0]]).double(), torch.tensor([[1.0], [2.0], [3.0]]).double()
    decoder = Decoder.affine(scale, shift, event_shape=(3, "T"))
    inverse = Inverse(decoder)
    for frames in (1, 5):
        x = noise(0, 0, 4, (3, frames), torch.float64)
        whole = Decoder.affine(scale.expand(3, frames), shift.expand(3, frames))
        data = decoder.decode(x)
        assert torch.equal(data, whole.decode(x))
        torch.testing.assert_close(inverse.encode(data), x)
        assert torch.equal(inverse.log_volume(data), Inverse(whole).log_volume(data))
        assert inverse.log_volume(data).tolist() == pytest.approx([frames * math.log(4.0)] * 4)
    again = Decoder(DecoderConfig.model_validate(decoder.config.model_dump(mode="json")))
    again.load_state_dict(decoder.state_dict())
    assert decoder.state_dict()["scale"].shape == (3,)
    with pytest.raises(ValueError, match=r"shape is \[2, 5\]"):
        decoder.decode(torch.ones(4, 2, 5))


def test_a_free_axis_may_move() -> None:
    decoder = Decoder.affine(torch.full((2, 1), 2.0), torch.tensor([[0.0], [1.0]]), ("T", 2), event_shape=(2, "T"))
    x = torch.arange(6.0).reshape(1, 2, 3)
    data = decoder.decode(x)
    assert data.shape == (1, 3, 2)
    assert data.flatten().tolist() == [0.0, 2.0, 4.0, 7.0, 9.0, 11.0]
    assert torch.equal(Inverse(decoder).encode(data), x)


def test_pca_inverts_a_full_decomposition() -> None:
    data = np.random.default_rng(0).normal(size=(50, 6)) @ np.diag([5, 4, 3, 2, 1, 0.5]) + 7.0
    mean = data.mean(0)
    _, _, components = np.linalg.svd(data - mean, full_matrices=False)
    latents = (data - mean) @ components.T
    scale = latents.std(0)
    decoder = Decoder.pca(*(torch.from_numpy(a) for a in (mean, components, scale)), data_shape=(2, 3))
    decoded = decoder.decode(torch.from_numpy(latents / scale))
    assert decoded.shape == (50, 2, 3)
    np.testing.assert_allclose(decoded.reshape(50, 6).numpy(), data, rtol=1e-12)


def test_an_empty_decoder_takes_the_tensors_of_another() -> None:
    first = Decoder.pca(torch.ones(6), torch.arange(12.0).reshape(2, 6), torch.tensor([1.0, 2.0]), (6,))
    with torch.device("meta"):
        second = Decoder(first.config)
    second.load_state_dict(first.state_dict(), assign=True)
    x = torch.tensor([[1.0, -1.0]])
    assert torch.equal(first.decode(x), second.decode(x))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "zip", "event_shape": (2,), "data_shape": (2,)}, "kind"),
        ({"event_shape": (2,), "data_shape": (3,)}, "identity cannot turn"),
        ({"event_shape": (0,), "data_shape": (0,)}, "event_shape is"),
        ({"kind": "pca", "event_shape": (10**6,), "data_shape": (10**6,)}, "too many"),
        ({"event_shape": (10**12,), "data_shape": (10**12,)}, "event_shape is"),
        ({"event_shape": (2,), "data_shape": (2,), "clip": (1.0, 0.0)}, "clip is"),
        ({"kind": "affine", "event_shape": (2, "T"), "data_shape": (3, "T")}, "affine cannot turn"),
        ({"kind": "affine", "event_shape": (2, "T"), "data_shape": (2, 4)}, "the free axes of samples are"),
        ({"event_shape": (2,), "data_shape": (2,), "clip": (0.0, float("nan"))}, "clip is"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(fields: dict, named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DecoderConfig(**fields)


def test_tensors_of_a_wrong_shape_are_refused() -> None:
    with pytest.raises(ValueError, match="mean has shape"):
        Decoder.pca(torch.ones(5), torch.ones(2, 6), torch.ones(2), (6,))


def far() -> Decoder:
    """A decoder of data near 1e9 that vary by 1 and by a thousandth."""
    return Decoder.affine(torch.tensor([1.0, 1e-3]).double(), torch.tensor([1e9, -1e9]).double(), dtype="float64")


def test_data_far_from_zero_are_decoded_and_encoded_in_float64() -> None:
    x = torch.linspace(-4, 4, 50).reshape(25, 2)
    data = far().decode(x)
    assert data.dtype == torch.float64
    np.testing.assert_allclose(data[:, 0].numpy(), 1e9 + x[:, 0].double().numpy(), rtol=0, atol=2**-23)
    back = Inverse(far()).encode(data)
    assert back.dtype == torch.float64
    np.testing.assert_allclose(back.numpy(), x.double().numpy(), rtol=0, atol=2**-23 / 1e-3)


def test_a_decoder_of_the_states_type_says_nothing_of_it() -> None:
    config = Decoder.identity((2,)).config
    assert "dtype" not in config.model_dump(mode="json")
    assert DecoderConfig.model_validate(config.model_dump()) == config
    assert far().config.model_dump(mode="json")["dtype"] == "float64"
    with pytest.raises(ValidationError, match="dtype"):
        DecoderConfig.model_validate({"event_shape": (2,), "data_shape": (2,), "dtype": "float16"})


def test_the_inverse_of_an_identity_only_reshapes():
    inverse = Inverse(Decoder.identity((6,), (2, 3)))
    data = noise(0, 0, 4, (2, 3))
    assert torch.equal(inverse.encode(data), data.reshape(4, 6))
    assert inverse.log_volume(data).tolist() == [0.0] * 4


def test_scales_and_shifts_are_undone_and_the_volume_is_their_product():
    decoder = Decoder.affine(torch.tensor([2.0, -0.5, 4.0]).double(), torch.tensor([1.0, 2.0, 3.0]).double())
    inverse = Inverse(decoder)
    torch.testing.assert_close(inverse.encode(decoder.decode(X)), X)
    assert inverse.log_volume(X).tolist() == pytest.approx([math.log(4.0)] * len(X))


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
    assert float(inverse.log_volume(data)[0]) == pytest.approx(0.5 * float(torch.logdet(picture @ picture.T)))
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


DOUBLED = Function.with_tensors(
    FunctionConfig.model_validate(
        {
            "inputs": {"x": "float32"},
            "outputs": {"data": "v"},
            "tensors": {"w": {"shape": [], "dtype": "float32"}},
            "steps": [{"op": "torch.ops.aten.mul.Tensor", "args": [{"value": "c_x"}, {"value": "w"}], "out": ["v"]}],
        }
    ),
    {"w": torch.tensor(2.0)},
)


def test_a_program_decodes_in_the_dtype_of_states_and_is_clipped() -> None:
    decoder = Decoder.from_program(DOUBLED, (4,), (2, 2), clip=(-1.0, 1.0))
    decoded = decoder.decode(torch.tensor([[0.25, -3.0, 0.5, 3.0]], dtype=torch.float64))
    assert decoded.dtype == torch.float64
    assert decoded.tolist() == [[[0.5, -1.0], [1.0, 1.0]]]
    again = Decoder(DecoderConfig.model_validate(decoder.config.model_dump(mode="json")))
    again.load_state_dict(decoder.state_dict())
    assert torch.equal(again.decode(torch.ones(1, 4)), decoder.decode(torch.ones(1, 4)))
    assert decoder.find_mixing(torch.float32) is None
    with pytest.raises(InverseError, match="cannot be run backwards"):
        Inverse(decoder)


def test_a_program_decodes_states_of_any_size() -> None:
    decoder = Decoder.from_program(DOUBLED, (2, "T"), ("2*T",))
    for size in (1, 5):
        x = noise(0, 0, 3, (2, size))
        assert torch.equal(decoder.decode(x), 2 * x.flatten(1))
    assert decoder.find_mixing(torch.float32, sizes={"T": 3}) is None
    again = DecoderConfig.model_validate(decoder.config.model_dump(mode="json"))
    assert again == decoder.config
    wrong = Decoder.from_program(DOUBLED, (2, "T"), ("2*T-1",))
    with pytest.raises(DecoderError, match=r"returned \[3, 2, 5\] for 3 states, expected \[9\]"):
        wrong.decode(noise(0, 0, 3, (2, 5)))


def test_a_program_that_makes_another_shape_is_told() -> None:
    decoder = Decoder.from_program(DOUBLED, (4,), (2, 3))
    with pytest.raises(DecoderError, match=r"returned \[5, 4\] for 5 states, expected \[2, 3\]"):
        decoder.decode(torch.ones(5, 4))


@pytest.mark.parametrize(
    "fields",
    [
        {"kind": "program"},
        {"kind": "identity", "program": DOUBLED.config},
        {"kind": "program", "program": DOUBLED.config.model_copy(update={"inputs": {"z": "float32"}})},
    ],
)
def test_a_program_belongs_to_its_kind(fields: dict) -> None:
    with pytest.raises(ValidationError, match="program"):
        DecoderConfig.model_validate({"event_shape": (4,), "data_shape": (4,), **fields})


def test_an_identity_reshapes_samples_of_any_size() -> None:
    decoder = Decoder.identity((1, 2, "T"), (2, "T"), clip=(-1.0, 1.0))
    for size in (3, 5):
        x = noise(0, 0, 4, (1, 2, size))
        data = decoder.decode(x)
        assert torch.equal(data, x.clamp(-1, 1)[:, 0])
        assert torch.equal(Inverse(decoder).encode(data), x.clamp(-1, 1))


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"kind": "pca", "event_shape": (2, "T"), "data_shape": (2, "T")}, "axis T is free"),
        ({"event_shape": (2, "T"), "data_shape": (2, "N")}, "free axes of samples"),
        ({"event_shape": (2, "T"), "data_shape": (2, "2*T")}, "which only a program can produce"),
        ({"event_shape": (2, "2*T"), "data_shape": (2, "2*T")}, "event_shape"),
        ({"event_shape": (2, "T"), "data_shape": (2, "T/2")}, "data_shape"),
        ({"kind": "program", "event_shape": (2, "T"), "data_shape": ("2*N",)}, "but data have N"),
        ({"event_shape": (2, "T"), "data_shape": (3, "T")}, "cannot turn shape"),
        ({"event_shape": (0, "T"), "data_shape": (0, "T")}, "must be at least 1"),
    ],
)
def test_free_axes_that_make_no_sense(fields: dict, named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DecoderConfig.model_validate(fields)


def table_decoder(**changes: Any) -> Decoder:
    """A decoder of the columns x (a number), c (always 0.0016), n (whole, 1 to 9) and b (yes or no)."""
    columns = (
        ColumnCard(name="x", low=-2, high=2),
        ColumnCard(name="c", low=0.0016, high=0.0016),
        ColumnCard(name="n", kind="whole", low=1, high=9),
        ColumnCard(name="b", kind="yes-no", low=0, high=1),
    )
    scale, shift = torch.tensor([2.0, 1.0, 2.5, 0.4]), torch.tensor([0.5, 0.0016, 5.0, 0.3])
    constants = torch.tensor([1]), torch.tensor([0.0016])
    return Decoder.affine(scale, shift, **{"constants": constants, "columns": columns, **changes})


def test_constants_whole_columns_and_yes_or_no_come_back_as_they_are() -> None:
    x = torch.tensor([[0.25, 3.0, 0.3, 0.6], [-1.0, -0.5, -9.0, -9.0], [1.0, 0.0, 9.0, 9.0]])
    assert table_decoder().decode(x).tolist() == [
        [1.0, float(np.float32(0.0016)), 6.0, 1.0],
        [-1.5, float(np.float32(0.0016)), 1.0, 0.0],
        [2.5, float(np.float32(0.0016)), 9.0, 1.0],
    ]
    assert not torch.signbit(table_decoder().decode(torch.tensor([[0.0, 0.0, 0.0, -0.8]]))).any()


def test_what_is_rounded_has_the_affine_inverse() -> None:
    x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    x[:, 1] = 0
    data = table_decoder().decode(x)
    plain, inverse = table_decoder(constants=None, columns=None), Inverse(table_decoder())
    states = inverse.encode(data)
    assert torch.equal(states, Inverse(plain).encode(data))
    assert torch.equal(table_decoder().decode(states), data)
    assert torch.equal(inverse.log_volume(data), Inverse(plain).log_volume(data))


@pytest.mark.parametrize("dtype", [None, "float64"])
def test_what_a_decoder_rounds_is_in_its_config_and_tensors(dtype: Any) -> None:
    first = table_decoder(dtype=dtype)
    with torch.device("meta"):
        second = Decoder(DecoderConfig.model_validate(first.config.model_dump(mode="json")))
    second.load_state_dict(first.state_dict(), assign=True)
    x = noise(0, 0, 9, (4,))
    assert torch.equal(first.decode(x), second.decode(x))
    assert (first.config.rounded, first.config.constants) == ((2, 3), 1)
    assert not {"columns", "constants"} & set(Decoder.identity((2,)).config.model_dump())


def test_rounded_states_are_not_their_own_data() -> None:
    columns = (ColumnCard(name="n", kind="whole", low=0, high=3),)
    identity = DecoderConfig(event_shape=(1,), data_shape=(1,), columns=columns)
    assert not identity.reshapes_only
    assert Decoder.identity((1,)).config.reshapes_only
    assert Decoder(identity).decode(torch.tensor([[1.4], [-5.0]])).tolist() == [[1.0], [0.0]]


def test_pixels_that_never_change_are_constants_of_pictures() -> None:
    half, constants = torch.full((1, 2, 2), 0.5), (torch.tensor([3]), torch.tensor([0.25]))
    decoder = Decoder.affine(half, half, data_shape=(2, 2), clip=(0.0, 1.0), constants=constants)
    assert decoder.decode(torch.zeros(2, 1, 2, 2)).tolist() == [[[0.5, 0.5], [0.5, 0.25]]] * 2


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"constants": 1}, "only affine decoders of a fixed shape"),
        ({"kind": "affine", "constants": 3}, "constants is 3"),
        ({"columns": [{"name": "x", "low": 0, "high": 1}]}, "there are 1 columns for data of shape"),
        ({"columns": [{"name": name, "low": 1, "high": 0} for name in "xy"]}, "low 1 above high 0"),
    ],
)
def test_columns_and_constants_that_make_no_sense(fields: dict, named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        DecoderConfig.model_validate({"event_shape": (2,), "data_shape": (2,), **fields})
