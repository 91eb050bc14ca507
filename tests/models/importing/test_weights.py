"""Foreign state dicts become checkpoints; mismatches are named, and no code is run."""

import json
import os
import pickle
import random
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor

from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.loading import load
from models.conventions import TimeCard
from models.importing.declared import Declared
from models.importing.files import ForeignError, read_tensors
from models.importing.weights import import_weights
from solvers import integrate
from solvers.spec import SolverSpec

from .conftest import CONFIG

State = dict[str, Tensor]
Save = Callable[..., Path]


def take(file: Path, **arguments: Any) -> Any:
    root = file.parent / "repository"
    return import_weights(file, root, "foreign", "residual_mlp", arguments.pop("config", CONFIG), **arguments)


def under(prefix: str, state: State, factor: float = 1.0) -> State:
    return {prefix + key: tensor * factor for key, tensor in state.items()}


@pytest.mark.parametrize(
    "prefix", ["", "module.", "_orig_mod.", "ema.", "model.", "module._orig_mod.", "ema.module.", "model.net.velocity."]
)
def test_prefixes_are_found_and_reported(trained: State, saved: Save, prefix: str) -> None:
    imported = take(saved(under(prefix, trained)))
    assert imported.report[0].endswith(f"under the prefix {prefix!r}" if prefix else "under no prefix")
    velocity = load(imported.path).velocity
    assert all(torch.equal(velocity.state_dict()[key], tensor) for key, tensor in trained.items())


def test_nested_containers_and_an_optimizer(trained: State, saved: Save) -> None:
    content = {
        "step": 7,
        "net_model": under("module.", trained),
        "optim": {"state": {0: {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1, "params": [0]}]},
    }
    assert "under the prefix 'net_model.module.'" in take(saved(content)).report[0]


def test_averaged_or_raw_must_be_said_where_both_are_there(trained: State, saved: Save) -> None:
    file = saved({"net_model": trained, "ema_model": under("", trained, 0.5)})
    with pytest.raises(ForeignError, match="add --which ema or --which raw"):
        take(file)
    for which, factor in (("ema", 0.5), ("raw", 1.0)):
        velocity = load(take(file, which=which).path).velocity
        assert torch.equal(velocity.state_dict()["output.weight"], trained["output.weight"] * factor)
    with pytest.raises(ForeignError, match="holds no ema weights, only raw under 'net_model"):
        take(saved({"net_model": trained}), which="ema")


def test_both_in_one_flat_state_dict(trained: State, saved: Save) -> None:
    file = saved({**under("model.", trained), **under("model_ema.", trained, 0.5)})
    velocity = load(take(file, which="ema").path).velocity
    assert torch.equal(velocity.state_dict()["output.bias"], trained["output.bias"] * 0.5)


def test_safetensors(trained: State, tmp_path: Path) -> None:
    safetensors.torch.save_file(under("model.", trained), tmp_path / "weights.safetensors")
    assert take(tmp_path / "weights.safetensors").path.name == "1"


def test_missing_and_surplus_keys_are_named_with_the_nearest(trained: State, saved: Save) -> None:
    state = dict(trained)
    state["output.wieght"] = state.pop("output.weight")
    with pytest.raises(ForeignError) as caught:
        take(saved(state))
    assert "key output.weight: is missing (nearest is output.wieght)" in str(caught.value)
    assert "key output.wieght: is unexpected (nearest is output.weight)" in str(caught.value)


def test_shapes_that_differ_are_named(trained: State, saved: Save) -> None:
    with pytest.raises(ForeignError, match=r"key output.bias: found shape \[2\], expected \[3\]"):
        take(saved(trained), config={**CONFIG, "dim": 3})


def test_another_network_altogether(saved: Save) -> None:
    with pytest.raises(ForeignError, match=r"none of the keys of this architecture; found conv.weight; expected"):
        take(saved({"conv.weight": torch.zeros(1)}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_becomes_single(trained: State, saved: Save, dtype: torch.dtype) -> None:
    imported = take(saved({key: tensor.to(dtype) for key, tensor in trained.items()}))
    assert f"precision: {str(dtype)[6:]} became float32 (--compute {str(dtype)[6:]} keeps it)" in imported.report
    assert load(imported.path).dtype == torch.float32


def test_double_precision_stays(trained: State, saved: Save) -> None:
    imported = take(saved({key: tensor.double() for key, tensor in trained.items()}))
    assert load(imported.path).dtype == torch.float64


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_numbers_that_are_not_finite(trained: State, saved: Save, value: float) -> None:
    state = {**trained, "output.bias": torch.tensor([0.0, value])}
    with pytest.raises(ForeignError, match=r"key output.bias: holds numbers that are not finite"):
        take(saved(state))


def test_integers_where_numbers_should_be(trained: State, saved: Save) -> None:
    with pytest.raises(ForeignError, match=r"key output.bias: found torch.int64, expected torch.float32"):
        take(saved({**trained, "output.bias": torch.zeros(2, dtype=torch.int64)}))


class Malicious:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.target),)


@pytest.mark.parametrize("plain", [False, True])
def test_a_pickle_with_code_is_refused_and_not_run(trained: State, tmp_path: Path, plain: bool) -> None:
    target = tmp_path / "was-run"
    content = {**trained, "evil": Malicious(target)}
    file = tmp_path / "weights.pt"
    if plain:
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, file)
    with pytest.raises(
        ForeignError, match="refused; none of its code was run: it " + ("holds" if plain else "would run posix.mkdir")
    ):
        take(file)
    assert not target.exists()
    assert not (tmp_path / "repository").exists()


@pytest.mark.parametrize("name", ["weights.pt", "weights.safetensors", "weights.bin"])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"not a file", b"\x80\x04.", bytes(1000)])
def test_damaged_files(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ForeignError, match=name):
        take(tmp_path / name)


@pytest.mark.parametrize("archive", [True, False])
def test_whatever_bytes_are_damaged_a_pickle_is_read_or_refused(tmp_path: Path, archive: bool) -> None:
    file, draw = tmp_path / "weights.pt", random.Random(0)
    torch.save({"a": torch.ones(2), "b": torch.ones(3)}, file, _use_new_zipfile_serialization=archive)
    content, messages = file.read_bytes(), []
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(draw.randint(1, 3)):
            damaged[draw.randrange(len(damaged))] = draw.choice([draw.randrange(256), *b"(.0cbRu\x85\x86\x87"])
        file.unlink()  # the one before may still be mapped
        file.write_bytes(damaged)
        try:
            read_tensors(file)
        except ForeignError as error:
            messages.append(str(error))
    assert len(messages) > 100
    assert all(message.isprintable() for message in messages)


def _zip(file: Path, members: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(file, "w", compression) as archive:
        warnings.simplefilter("ignore")  # about names given twice
        for name, content in members:
            archive.writestr(name, content)
    return file


def test_what_takes_more_memory_than_the_file_has_is_refused(trained: State, saved: Save, tmp_path: Path) -> None:
    with zipfile.ZipFile(saved(trained)) as archive:
        members = [(name, archive.read(name)) for name in archive.namelist()]
    with pytest.raises(ForeignError, match="has compressed members"):
        take(_zip(tmp_path / "bomb.pt", [*members, ("archive/more", bytes(1 << 20))], zipfile.ZIP_DEFLATED))
    claim = _zip(tmp_path / "claim.pt", members)
    content, size = claim.read_bytes(), len(members[0][1]).to_bytes(4, "little")
    at = content.index(b"PK\x01\x02") + 20  # both sizes of the first member, in the directory
    assert content[at : at + 8] == 2 * size
    claim.write_bytes(content[:at] + b"\0\0\0\x70" * 2 + content[at + 8 :])
    with pytest.raises(ForeignError, match=r"claims 18791\d+ bytes of members, but has"):
        take(claim)
    pickled = b"\x80\x02}X\x01\0\0\0acbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85Rs."
    plain = tmp_path / "plain.pt"
    plain.write_bytes(pickled)
    for file in (_zip(tmp_path / "zip.pt", [("archive/data.pkl", pickled), ("archive/version", b"3\n")]), plain):
        with pytest.raises(ForeignError, match="it would run builtins"):
            take(file)


def test_names_in_messages_cannot_write_to_a_terminal(trained: State, saved: Save, tmp_path: Path) -> None:
    changed = {key.replace("output.bias", "output.\x1b[2Jbias"): tensor for key, tensor in trained.items()}
    with pytest.raises(ForeignError, match=r"is missing \(nearest is") as refused:
        take(saved(changed))
    assert str(refused.value).isprintable()


def test_no_tensors_and_no_file(saved: Save, tmp_path: Path) -> None:
    with pytest.raises(ForeignError, match="holds no tensors, only a dict"):
        take(saved({"epoch": 3}))
    with pytest.raises(ForeignError, match="is missing"):
        take(tmp_path / "nothing.pt")
    with pytest.raises(ForeignError, match="cannot be read: is a folder; only regular files are read"):
        take(tmp_path)


@pytest.mark.parametrize(
    ("architecture", "config", "message"),
    [("resnet", {}, "use one of"), ("residual_mlp", {"dim": 0}, "dim"), ("residual_mlp", {"size": 2}, "size")],
)
def test_architectures(trained: State, saved: Save, architecture: str, config: dict[str, Any], message: str) -> None:
    file = saved(trained)
    with pytest.raises(ForeignError, match=message):
        import_weights(file, file.parent, "foreign", architecture, config)


@pytest.mark.parametrize("time", [TimeCard(), TimeCard(noise_at=0, sign=-1), TimeCard(noise_at=1, data_at=0)])
def test_what_is_declared_is_stored_and_followed(trained: State, saved: Save, time: TimeCard) -> None:
    file = saved(trained)
    plain = load(take(file, declared=Declared(0, 1.0, 1)).path)
    path = take(file, declared=Declared(time.noise_at, time.scale, time.sign)).path
    assert json.loads((path / "card.json").read_text())["time"] == time.model_dump()
    x, t = torch.randn(5, 2), torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0])
    own = t if time.noise_at == 0 else 1 - t
    factor = time.sign * (1 if time.noise_at == 0 else -1)
    torch.testing.assert_close(load(path).velocity(x, t), factor * plain.velocity(x, own))


def test_the_convention_is_detected_where_it_is_not_declared(trained: State, saved: Save) -> None:
    backwards = {**trained, "output.weight": -trained["output.weight"], "output.bias": -trained["output.bias"]}
    assert "convention: noise at 0, time scale 1, sign +1" in take(saved(trained)).report
    assert "convention: noise at 0, time scale 1, sign -1" in take(saved(backwards)).report


@pytest.mark.parametrize(
    ("declared", "wrong"),
    [(Declared(noise_at=1), "noise_at"), (Declared(sign=-1), "sign"), (Declared(scale=1000.0), "scale")],
)
def test_a_declared_convention_that_looks_wrong_is_warned_of(
    trained: State, saved: Save, declared: Declared, wrong: str
) -> None:
    message = take(saved(trained), declared=declared).report
    assert any(line.startswith(f"warning: {wrong} as declared looks wrong") for line in message)


def test_an_untrained_network_shows_no_convention(trained: State, saved: Save) -> None:
    state = {key: torch.zeros_like(tensor) for key, tensor in trained.items()}
    imported = take(saved(state))
    assert any(line.startswith("warning: the convention cannot be detected") for line in imported.report)
    assert load(imported.path).card.time == TimeCard()


def test_decoders(trained: State, saved: Save) -> None:
    file = saved(trained)
    card = load(take(file, decoder={"data_shape": (1, 2), "clip": (-1.0, 1.0)}).path).card
    assert (card.data_shape, card.decoder.clip) == ((1, 2), (-1.0, 1.0))
    with pytest.raises(ForeignError, match="--data-shape or --clip"):
        take(file, decoder={"data_shape": (3, 3)})


EIGHT_BITS = [torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]


@pytest.mark.parametrize("dtype", EIGHT_BITS)
@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
def test_eight_bits_become_single_and_are_said(
    trained: State, saved: Save, tmp_path: Path, dtype: torch.dtype, suffix: str
) -> None:
    state = {key: tensor.to(dtype) for key, tensor in trained.items()}
    file = tmp_path / "weights.safetensors"
    if suffix == "pt":
        file = saved(state)
    else:
        safetensors.torch.save_file(state, file)
    imported = take(file)
    name = str(dtype).removeprefix("torch.")
    note = f"precision: {name} became float32; scales that may belong to them were not applied"
    assert note in imported.report
    weight = load(imported.path).velocity.state_dict()["output.weight"]
    assert torch.equal(weight, state["output.weight"].float())


def test_double_beside_single_becomes_single_and_is_said(trained: State, saved: Save) -> None:
    imported = take(saved({**trained, "output.bias": torch.zeros(2).double()}))
    assert "precision: float64 became float32" in imported.report
    with pytest.raises(ForeignError, match=r"key output.bias: holds numbers that are too large for float32"):
        take(saved({**trained, "output.bias": torch.full((2,), 1e300, dtype=torch.float64)}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.to("meta"), "has a shape but no numbers"),
        (lambda w: w.to_sparse(), "is sparse_coo; save a plain tensor"),
        (lambda w: torch.nested.nested_tensor([w]), "is nested; save plain tensors"),
        (
            lambda w: torch.quantize_per_tensor(w, 0.1, 0, torch.qint8),
            r"is quantized \(qint8\); save tensor.dequantize",
        ),
        (lambda w: w.to(torch.complex64), "is complex64; the networks here have real weights"),
        (lambda w: w.to(torch.int8), "found torch.int8, expected torch.float32"),
        (lambda w: w.to(torch.uint16), "found torch.uint16, expected torch.float32"),
        (lambda w: w > 0, "found torch.bool, expected torch.float32"),
        (lambda w: torch.zeros(w.shape, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "is float4_e2m1fn_x2"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*quant.*")  # torch's own warning
@pytest.mark.filterwarnings("ignore:.*nested tensors.*")
def test_types_that_cannot_be_taken_are_named(
    trained: State, saved: Save, change: Callable[[Tensor], Tensor], message: str
) -> None:
    with pytest.raises(ForeignError, match=rf"key output.weight: {message}"):
        take(saved({**trained, "output.weight": change(trained["output.weight"])}))


def test_expanded_tensors_are_written_whole(trained: State, saved: Save) -> None:
    state = {**trained, "output.weight": torch.tensor(0.5).expand(trained["output.weight"].shape)}
    weight = load(take(saved(state)).path).velocity.state_dict()["output.weight"]
    assert torch.equal(weight, torch.full(weight.shape, 0.5))
    huge = torch.zeros(1).expand(1 << 40)
    with pytest.raises(ForeignError, match=r"found shape \[1099511627776\], expected"):
        take(saved({**trained, "output.weight": huge}))


def test_containers_that_share_their_parts_are_gone_through_once(trained: State, saved: Save) -> None:
    nested: Any = {"a": 1.0}
    for _ in range(30):
        nested = {"a": nested, "b": nested}  # a billion paths through shared containers
    assert "under the prefix 'net.'" in take(saved({"more": nested, "net": trained})).report[0]


def test_keys_of_very_many_parts_and_very_many_keys_are_refused(trained: State, saved: Save) -> None:
    one = torch.zeros(1)
    more = {f"output.weigh{k}": one for k in range(3000)} | {"a." * 20_000 + "b": one}
    with pytest.raises(ForeignError, match=r"is unexpected.* more\)") as caught:
        take(saved({**trained, **more}))
    assert len(str(caught.value)) < 3000


def test_pipes_and_devices_are_not_opened(tmp_path: Path) -> None:
    for suffix in ("pt", "safetensors"):
        os.mkfifo(tmp_path / f"pipe.{suffix}")
        with pytest.raises(ForeignError, match="is a named pipe; only regular files are read"):
            take(tmp_path / f"pipe.{suffix}")


@pytest.fixture(scope="module")
def eps() -> State:
    """A network that predicts the noise on Song et al.'s path."""
    torch.manual_seed(0)
    network = ResidualMLP(ResidualMLPConfig(**CONFIG))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    for _ in range(300):
        x1, noise, u = (
            2 * torch.randint(0, 2, (256, 2)) - 1 + 0.1 * torch.randn(256, 2),
            torch.randn(256, 2),
            torch.rand(256),
        )
        a = torch.exp(-19.9 * u**2 / 4 - 0.1 * u / 2)[:, None]
        loss = (network(a * x1 + (1 - a**2).sqrt() * noise, u) - noise).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {key: tensor.detach().clone() for key, tensor in network.state_dict().items()}


def test_a_network_that_predicts_noise_is_not_taken_for_a_velocity_in_silence(eps: State, saved: Save) -> None:
    file = saved(eps)
    for declared in (Declared(noise_at=1), Declared(noise_at=1, scale=1.0, sign=1), Declared()):
        assert any(
            "declare --predicts velocity, or --predicts eps" in line for line in take(file, declared=declared).report
        )
    message = take(file, declared=Declared(predicts="eps", path="vp")).report
    assert not any("warning" in line for line in message)
    assert any(
        line.startswith("convention: predicts eps on path vp (beta, beta_min 0.1, beta_max 20.0)") for line in message
    )
    wrong = take(file, declared=Declared(predicts="x0", path="vp")).report
    assert any("predicts x0 as declared looks wrong" in line for line in wrong)
    with pytest.raises(ForeignError, match=r"the declared convention is not valid: .*sigma grows with the noise"):
        take(file, declared=Declared(predicts="eps", path="edm", noise_at=0))


def test_a_network_that_predicts_noise_is_sampled_by_its_authors_settings(eps: State, saved: Save) -> None:
    declared = Declared(predicts="eps", path="vp")
    sampling = declared.sampled("euler", [1.0, 0.8, 0.5, 0.2, 0.05, 0.0])
    assert sampling is not None
    checkpoint = load(take(saved(eps), declared=replace(declared, sampling=sampling)).path)
    assert checkpoint.card.sampling == sampling
    assert SolverSpec.parse(sampling.solver).steps == 5
    ends = integrate(
        checkpoint.velocity, torch.randn(200, 2), solver="euler", grid=SolverSpec.parse(sampling.solver).grid
    ).x
    assert float((ends.abs() - 1).abs().median()) < 0.15  # the data are at +-1 in each coordinate


def test_a_scheduler_of_diffusers_gives_convention_and_steps(trained: State, saved: Save) -> None:
    config = {"_class_name": "DDIMScheduler", "steps_offset": 1, "set_alpha_to_one": False, "clip_sample": False}
    declared = Declared().scheduled(config, "euler-10")
    imported = take(saved(trained), declared=declared)
    card = load(imported.path).card
    assert (card.time.predicts, card.time.path, card.time.start, card.time.stop) == ("eps", "vp", 901.0, 0.0)
    assert f"solver of requests that name none: {card.authors_solver({})}" in imported.report
    spec = SolverSpec.parse(card.authors_solver({}) or "")
    assert (spec.solver, spec.steps) == ("euler", 10)
    assert spec.grid == tuple(card.time.grid([901, 801, 701, 601, 501, 401, 301, 201, 101, 1]))
    with pytest.raises(ValueError, match="20 steps of this scheduler start at 951"):
        card.authors_solver({}, 20)


@pytest.mark.parametrize(
    ("solver", "own_times", "says"),
    [
        ("eulr-4", None, "unknown solver 'eulr'"),
        (None, [80.0, 0.0], "--own-times needs --solver"),
        ("euler", [0.9, 0.1], r"for times from 0.9 on, add --start 0.9"),
        ("euler-3", [1.0, 0.0], "steps = 3, but the grid has 1 intervals"),
        ("euler", [0.5, 1.0], "grid must move strictly from 0 to 1"),
    ],
)
def test_default_solvers_that_are_none(solver: str | None, own_times: list[float] | None, says: str) -> None:
    with pytest.raises(ForeignError, match=says):
        Declared(predicts="eps", path="vp").sampled(solver, own_times)
