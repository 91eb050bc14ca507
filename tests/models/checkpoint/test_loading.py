import hashlib
import json
import os
import re
import resource
import struct
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from models.architectures.analytic import Gaussian, Mixture
from models.architectures.residual_mlp import ResidualMLP
from models.checkpoint.card import CheckpointError
from models.checkpoint.loading import load
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.noise import noise
from models.program.network import Program, ProgramConfig
from models.program.steps import Step


def edit(folder: Path, **fields: Any) -> None:
    """Change fields of a card, as by hand."""
    card = json.loads((folder / "card.json").read_text())
    card.pop("card_sha256", None)
    card.update(fields)
    (folder / "card.json").write_text(json.dumps(card))


def replace_weights(folder: Path, content: bytes) -> None:
    """Replace the weights, with the right hash."""
    (folder / "weights.safetensors").write_bytes(content)
    edit(folder, weights_sha256=hashlib.sha256(content).hexdigest())


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return safetensors.torch.load((folder / "weights.safetensors").read_bytes())


def refused(folder: Path) -> str:
    """Load a bad checkpoint and return its error, which must be one line without a hidden cause."""
    with pytest.raises(CheckpointError) as caught:
        load(folder)
    message = str(caught.value)
    assert "\n" not in message
    assert str(folder) in message
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return message


def test_what_was_saved_is_loaded(folder: Path, network: ResidualMLP) -> None:
    generator = torch.random.get_rng_state()
    checkpoint = load(folder)
    assert torch.equal(generator, torch.random.get_rng_state())
    x, t = noise(0, 0, 9, (2,)), torch.linspace(0, 1, 9)
    with torch.no_grad():
        assert torch.equal(checkpoint.velocity(x, t), network(x, t))
    assert torch.equal(checkpoint.decoder.decode(x), 2 * x + 1)
    assert not checkpoint.velocity.training
    assert not any(p.requires_grad for p in checkpoint.velocity.parameters())
    assert (checkpoint.dtype, checkpoint.path) == (torch.float32, folder)
    card = checkpoint.card
    assert (card.name, card.version, card.seed, card.noise) == ("moons", 1, 7, "philox-ndtri-v1")
    assert card.training == {"epochs": 300, "loss": 0.25}
    assert card.architecture.config["hidden"] == 8
    assert checkpoint.digest.startswith("sha256:")
    assert len(checkpoint.digest) == 71


@pytest.mark.parametrize("field", [Gaussian(), Mixture()])
def test_analytic_fields_are_checkpoints_like_any_other(tmp_path: Path, field: Gaussian | Mixture) -> None:
    path = save(tmp_path, "exact", field, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    loaded = load(path)
    assert loaded.card.dtype == "float64"
    x, t = noise(0, 0, 20, (2,), torch.float64), torch.linspace(0, 1, 20, dtype=torch.float64)
    assert torch.equal(loaded.velocity(x, t), field(x, t))


def test_the_digest_tells_card_and_weights(folder: Path) -> None:
    before = load(folder).digest
    edit(folder)
    assert load(folder).digest == before  # the same card, except for its own hash
    edit(folder, seed=8)
    seed = load(folder).digest
    changed = weights(folder)
    changed["velocity.output.bias"] += 1
    replace_weights(folder, safetensors.torch.save(changed))
    assert len({before, seed, load(folder).digest}) == 3


@pytest.mark.parametrize("file", ["card.json", "weights.safetensors"])
def test_every_flipped_bit_is_seen(folder: Path, file: str) -> None:
    path = folder / file
    content = path.read_bytes()
    positions = [*range(0, len(content), max(1, len(content) // 150)), len(content) - 2]
    for position in positions:
        if content[position : position + 1].isspace():
            continue  # in a card, other white space has the same meaning
        damaged = bytearray(content)
        damaged[position] ^= 1 << (position % 8)
        path.write_bytes(damaged)
        assert file in refused(folder)


@pytest.mark.parametrize("file", ["card.json", "weights.safetensors"])
def test_every_truncation_is_seen(folder: Path, file: str) -> None:
    path = folder / file
    content = path.read_bytes()
    for size in (0, 1, 7, 8, 9, len(content) // 2, len(content) - 2):
        path.write_bytes(content[:size])
        assert file in refused(folder)


@pytest.mark.parametrize("file", ["card.json", "weights.safetensors"])
def test_a_missing_file_is_named(folder: Path, file: str) -> None:
    (folder / file).unlink()
    assert f"{file}: is missing" in refused(folder)
    (folder / file).mkdir()
    assert f"{file}: cannot be read: is a folder; only regular files are read" in refused(folder)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    assert "missing" in refused(tmp_path / "nothing" / "1")


def test_a_pickle_is_not_read_and_said_so(tmp_path: Path) -> None:
    (tmp_path / "model.pt").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    assert "found model.pt: pickles can run code and are never read" in refused(tmp_path)


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"colour": "red"}, r"colour: Extra inputs are not permitted$"),
        ({"c" * 10_000: "red"}, r"card\.json: c{57}\.\.\.: Extra inputs are not permitted$"),
        ({f"colour{k}": "red" for k in range(5_000)}, r"card\.json: (colour\d+: [^;]*; ){20}and 4980 more$"),
        ({"format": 2}, "format: .*1, found 2"),
        ({"dtype": "float16"}, "dtype: .*'float32' or 'float64', found 'float16'"),
        ({"condition": {"classes": 10}}, "condition"),
        ({"conditions": {"c": {"null": 10**400}}}, r"conditions\.c: .*null is 1000\d*, which is not a valid float32"),
        (
            {"conditions": {"c": {"dtype": "int8", "default": 10**400}}},
            r"default is 1000\d*, which is not a valid int8",
        ),
        ({"conditions": {"c": {"mean": [10**400]}}}, r"conditions\.c\.mean: .*numbers below 1\.8e308"),
        ({"noise": "randn"}, "noise.*philox-ndtri-v1"),
        ({"time": {"noise_at": 1}}, "time: .*noise_at and data_at are both 1"),
        ({"seed": -1}, "seed: .*found -1"),
        ({"name": "../moons"}, "name: .*found '../moons'"),
        ({"weights_sha256": "abc"}, "weights_sha256"),
        ({"event_shape": [3]}, r"event_shape is \[3\], but that of the decoder is \[2\]"),
        ({"training": {"loss": float("nan")}}, "card.json"),
        ({"architecture": {"name": "resnet", "config": {}}}, "'resnet'; use one of residual_mlp"),
        ({"architecture": {"name": "residual_mlp", "config": {"dim": 2, "width": 1}}}, "width: Extra"),
        ({"architecture": {"name": "residual_mlp", "config": {"dim": 2, "hidden": 10**9}}}, "hidden: .*16384"),
        ({"architecture": {"name": "gaussian", "config": {"dim": 5}}}, r"event_shape: found \[2\], .* has \[5\]"),
    ],
)
def test_a_card_with_a_wrong_field_is_refused(folder: Path, fields: dict, named: str) -> None:
    edit(folder, **fields)
    message = refused(folder)
    assert re.search(named, message), message


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00\xff", "[" * 100_000, '{"format": 1}'])
def test_a_card_that_is_not_one_is_refused(folder: Path, text: str) -> None:
    (folder / "card.json").write_text(text)
    assert "card.json" in refused(folder)


def test_missing_and_surplus_keys_are_named_with_the_nearest(folder: Path) -> None:
    found = weights(folder)
    found["velocity.output.biass"] = found.pop("velocity.output.bias")
    found["other"] = torch.zeros(1)
    replace_weights(folder, safetensors.torch.save(found))
    message = refused(folder)
    assert "key velocity.output.bias: is missing (did you mean velocity.output.biass?)" in message
    assert "key velocity.output.biass: is unexpected" in message
    assert "key other: is unexpected" in message


def test_wrong_shapes_and_types_are_named(folder: Path) -> None:
    found = weights(folder)
    found["velocity.output.bias"] = torch.zeros(3)
    found["velocity.norm.bias"] = found["velocity.norm.bias"].half()
    replace_weights(folder, safetensors.torch.save(found))
    message = refused(folder)
    assert "key velocity.output.bias: found shape [3], expected [2]" in message
    assert "key velocity.norm.bias: found float16, expected float32" in message


def test_numbers_that_are_not_finite_are_named(folder: Path) -> None:
    found = weights(folder)
    found["velocity.norm.weight"][3] = float("nan")
    replace_weights(folder, safetensors.torch.save(found))
    assert "key velocity.norm.weight: holds numbers that are not finite" in refused(folder)


def test_a_velocity_that_overflows_is_refused(folder: Path) -> None:
    found = weights(folder)
    found["velocity.output.weight"].fill_(3e38)
    replace_weights(folder, safetensors.torch.save(found))
    assert "the velocity at t = 0: is not finite" in refused(folder)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"{]",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 10) + b'{"a": [1]}',
        b"cos\nsystem\n(S'false'\ntR.",
    ],
)
def test_a_file_that_is_no_safetensors_file_is_refused(folder: Path, content: bytes) -> None:
    replace_weights(folder, content)
    assert "weights.safetensors" in refused(folder)


def test_a_header_that_promises_more_than_the_file_holds_is_refused(folder: Path) -> None:
    content = (folder / "weights.safetensors").read_bytes()
    replace_weights(folder, content[:-8])
    assert "weights.safetensors: is not a safetensors file" in refused(folder)


def test_nothing_big_is_allocated_for_a_card_that_claims_it(folder: Path) -> None:
    config = {"dim": 2, "hidden": 16384, "blocks": 32}  # 70 GB in total, with each field within its bounds
    edit(folder, architecture={"name": "residual_mlp", "config": config})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # KiB
    message = refused(folder)
    assert "key velocity.blocks.1.linear1.weight: is missing" in message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_an_unknown_device_is_a_checkpoint_error(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be moved to device 'abacus'"):
        load(folder, device="abacus")


def test_a_decoder_in_float64_stays_so_beside_a_float32_network(tmp_path: Path, network: ResidualMLP) -> None:
    shift = torch.tensor([1e9 + 0.25, 3.0]).double()
    decoder = Decoder.affine(torch.tensor([0.1, 2.0]).double(), shift, dtype="float64")
    path = save(tmp_path, "far", network, decoder, dataset={}, training={}, seed=0)
    stored = weights(path)
    assert {tensor.dtype for key, tensor in stored.items() if key.startswith("velocity.")} == {torch.float32}
    assert torch.equal(stored["decoder.shift"], shift)
    checkpoint = load(path)
    assert (checkpoint.card.dtype, checkpoint.card.data_dtype, checkpoint.dtype) == (
        "float32",
        "float64",
        torch.float32,
    )
    x = noise(0, 0, 9, (2,))
    assert torch.equal(checkpoint.decoder.decode(x), x.double() * decoder.scale + shift)


def test_cards_without_a_type_of_the_data_are_written_as_before(folder: Path) -> None:
    written = json.loads((folder / "card.json").read_text())
    assert "dtype" not in written["decoder"]
    card = load(folder).card
    assert card.data_dtype == card.dtype == "float32"
    assert card.signed().to_json() == (folder / "card.json").read_bytes()


@pytest.mark.parametrize("file", ["card.json", "weights.safetensors"])
def test_a_pipe_or_a_device_is_not_opened(folder: Path, file: str) -> None:
    (folder / file).unlink()
    os.mkfifo(folder / file)
    assert f"{file}: cannot be read: is a named pipe; only regular files are read" in refused(folder)
    (folder / file).unlink()
    (folder / file).symlink_to("/dev/zero")
    assert f"{file}: cannot be read: is a device; only regular files are read" in refused(folder)


@pytest.mark.parametrize(
    "text", ["root:secret:0:0", '{"key": "secret"}', '["secret"]', '"secret"', '{"secret', '{"key": {"key": "secret"}}']
)
def test_nothing_of_a_file_that_is_no_card_is_quoted(folder: Path, text: str) -> None:
    (folder / "card.json").write_text(text)
    message = refused(folder)
    assert "is not a card" in message
    assert "secret" not in message


def header(keys: int, length: int = 20) -> bytes:
    """Return a safetensors file with this many empty tensors, with names of this length."""
    empty = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    content = json.dumps({f"{key:0{length}}": empty for key in range(keys)}).encode()
    return struct.pack("<Q", len(content)) + content


def test_a_header_far_longer_than_the_architecture_needs_is_not_parsed(folder: Path) -> None:
    replace_weights(folder, header(20_000))
    assert "its header has " in refused(folder)


def test_few_names_are_compared_however_many_differ(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[int] = []

    def count(word: str, possibilities: list[str], **options: Any) -> list[str]:
        compared.append(len(possibilities))
        assert max(map(len, [word, *possibilities])) <= 200
        return []

    monkeypatch.setattr("models.checkpoint.weights.get_close_matches", count)
    replace_weights(folder, header(5_000))
    assert "key velocity.blocks.0.linear1.bias: is missing" in (message := refused(folder))
    assert "more)" in message
    replace_weights(folder, header(100, 3_000))
    assert len(refused(folder)) < 3_000
    assert sum(compared) < 20 * 500


def test_a_file_far_larger_than_its_tensors_is_not_hashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (folder / "weights.safetensors").open("r+b") as file:
        file.truncate(1 << 40)  # a sparse file, which takes no space on the disk
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert "it has 1099511627776 bytes, but the tensors of this architecture take " in refused(folder)


@pytest.mark.parametrize(("states", "numbers"), [((1 << 26,), 1), ((4,), 1 << 24)])
def test_a_small_card_of_large_rows_is_refused_before_any_is_made(
    tmp_path: Path, states: tuple[int, ...], numbers: int
) -> None:
    """Such a card has a kilobyte, and took two gigabytes to check."""
    step = Step(op="torch.ops.aten.mul.Tensor", args=({"value": "x"}, 0.5), out=("v",))
    config = ProgramConfig(
        event_shape=states,
        dtype="float32",
        tensors={},
        steps=(step,),
        output="v",
        conditions={"c": NamedCondition(shape=(numbers,))},
    )
    with pytest.raises(CheckpointError, match="numbers at typical sizes; at most"):
        save(tmp_path, "large", Program(config), Decoder.identity(states), dataset={}, training={}, seed=0)
