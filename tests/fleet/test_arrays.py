"""Bulk jobs of models with named conditions: arrays from .npy files, for all samples or one row for each."""

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pathline._bulk_conditions import StoredArray, digest_of_array, write_array

from fleet.store import Target
from fleet.workers import InProcess
from models.architectures.residual_mlp import ResidualMLP, ResidualMLPConfig
from models.checkpoint.saving import save
from models.conditions import NamedCondition
from models.decoder import Decoder
from models.importing.weights import import_program
from service.app import create_app
from service.settings import load_settings
from tests.fleet.conftest import Fleet
from tests.service.latent import imported as latent
from tests.service.named import DECLARED, exported
from tests.service.named import imported as named

TOTAL = 200
JOB: dict[str, Any] = {"seed": 5, "total": TOTAL, "solver": "rk4-2", "shard_rows": 64, "format": "npy"}
TEXT = np.random.default_rng(0).normal(size=(TOTAL, 5, 4)).astype(np.float32)
MASK = np.arange(5) < 3
LABEL = np.arange(TOTAL) % 5

Save = Callable[..., list[str]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("named")
    named(folder, folder / "repository")
    latent(folder, folder / "repository")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATHLINE_MODELS_DIR", str(folder / "repository"))
        patch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")
        yield folder / "repository"


@pytest.fixture(autouse=True)
def environment(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(repository))
    monkeypatch.setenv("PATHLINE_ALLOW_PROGRAMS", "true")


@pytest.fixture
def saved(tmp_path: Path) -> Save:
    """Save arrays to files and return the options that give them."""

    def save(option: str = "condition", **arrays: NDArray[Any]) -> list[str]:
        found = []
        for name, array in arrays.items():
            np.save(tmp_path / f"{option}-{name}.npy", array)
            found += [f"--{option}", f"{name}={tmp_path / f'{option}-{name}.npy'}"]
        return found

    return save


def rows_of(folder: Path) -> NDArray[np.float32]:
    return np.concatenate([np.load(file) for file in sorted((folder / "shards").iterdir())])


def served(request: dict[str, Any], **arrays: NDArray[Any]) -> NDArray[np.float32]:
    """Return the samples of a request to a service."""
    body = io.BytesIO()
    np.savez(body, request=np.array(json.dumps(request)), **arrays)  # type: ignore[arg-type]  (names of entries)

    async def ask() -> bytes:
        app = create_app(load_settings(threads=1, watch_s=0))
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://t") as http,
        ):
            headers = {"Content-Type": "application/x-npz", "Accept": "application/x-npy"}
            answer = await http.post("/v1/sample", content=body.getvalue(), headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.content

    return np.load(io.BytesIO(asyncio.run(ask())))


def test_rows_are_those_of_the_service_whatever_the_shards_and_workers(
    fleet: Fleet, saved: Save, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [*saved(text=TEXT, mask=MASK, label=LABEL), "--condition", "strength=1.5"]
    found = set()
    for name, more in (("a", {}), ("b", {"shard_rows": 128}), ("c", {"on": "local", "workers": 2})):
        assert fleet("sample", "named", *given, to=tmp_path / name, **JOB | more) == 0
        found.add(capsys.readouterr().out.split("fingerprint ")[-1])
        assert fleet("verify", tmp_path / name) == 0
        found.add(capsys.readouterr().out.split("fingerprint ")[-1])
    assert len(found) == 1
    part = slice(90, 140)
    request = {"model": "named", "num_samples": 50, "seed": 5, "first_index": 90, "solver": "rk4-2"}
    arrays = {"text": TEXT[part], "mask": MASK, "label": LABEL[part], "strength": np.array(1.5)}
    wanted = served(request, **{f"conditions.{name}": array for name, array in arrays.items()})
    assert rows_of(tmp_path / "a")[part].tobytes() == wanted.tobytes()


def test_guidance_of_several_terms_and_negative_conditions(fleet: Fleet, saved: Save, tmp_path: Path) -> None:
    terms = [{"weight": 2, "condition": "all"}, {"weight": -1, "drop": ["text"]}]
    guidance = json.dumps({"terms": terms, "interval": [0, 0.8]})
    given = [*saved(text=TEXT[0], label=LABEL), *saved("negative", text=TEXT[1]), "--guidance", guidance]
    assert fleet("sample", "named", *given, to=tmp_path / "job", **JOB) == 0
    request = {"model": "named", "num_samples": TOTAL, "seed": 5, "solver": "rk4-2", "guidance": json.loads(guidance)}
    arrays = {"conditions.text": TEXT[0], "conditions.label": LABEL, "negative.text": TEXT[1]}
    assert rows_of(tmp_path / "job").tobytes() == served(request, **arrays).tobytes()


def test_a_prelude_and_a_decoder_run_for_each_shard(fleet: Fleet, saved: Save, tmp_path: Path) -> None:
    image = np.random.default_rng(0).integers(0, 256, (TOTAL, 3, 4, 4), dtype=np.uint8)
    assert fleet("sample", "latent", *saved(image=image), to=tmp_path / "job", **JOB) == 0
    request = {"model": "latent", "num_samples": TOTAL, "seed": 5, "solver": "rk4-2"}
    assert rows_of(tmp_path / "job").tobytes() == served(request, **{"conditions.image": image}).tobytes()


def test_a_resumed_job_reads_the_values_that_it_began_with(
    fleet: Fleet, saved: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given, target = saved(text=TEXT), tmp_path / "job"
    assert fleet("sample", "named", *given, to=target, **JOB) == 0
    whole = rows_of(target).tobytes()
    (target / "receipts" / "00002.json").unlink()
    Path(given[1].partition("=")[2]).unlink()  # the user's file is gone
    made, make = [], InProcess.make
    monkeypatch.setattr(InProcess, "make", lambda self, shard, tell: made.append(shard) or make(self, shard, tell))
    assert fleet("sample", to=target) == 0
    assert (made, rows_of(target).tobytes()) == ([2], whole)
    assert fleet("sample", "named", *saved(text=TEXT), to=target) == 0  # given again
    capsys.readouterr()
    assert fleet("sample", "named", *saved(text=TEXT + 1), to=target) == 2
    assert "the target holds another job: its conditions.text is" in capsys.readouterr().err
    assert fleet("sample", "named", *saved(label=LABEL), to=target) == 2
    assert "its conditions.label is None" in capsys.readouterr().err


@pytest.mark.parametrize("cut", [False, True])
def test_an_array_that_was_changed_is_refused(
    fleet: Fleet, saved: Save, tmp_path: Path, cut: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "job"
    assert fleet("sample", "named", *saved(text=TEXT), to=target, **JOB) == 0
    (target / "receipts" / "00002.json").unlink()
    file = target / "arrays" / "conditions.text.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content[:-64] if cut else content)
    assert fleet("sample", to=target) == 1
    assert "conditions.text.npy: was changed after the job began; restore it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"text": TEXT[:70]}, "conditions.text has the shape [70, 5, 4]"),
        ({"text": TEXT[..., :3]}, "expected float32 of shape [L up to 6, 4] for all samples"),
        ({"text": np.zeros((7, 4))}, "has L = 7, expected 1 to 6"),
        ({"text": np.full((5, 4), np.nan)}, "condition 'text' holds a number that is not finite in float32"),
        ({"text": np.where(np.arange(TOTAL) == 150, np.nan, 0)[:, None, None] + TEXT}, "is not finite in float32"),
        ({"label": np.where(np.arange(TOTAL) == 150, 5, 0)}, "is 5, expected a class label"),
        ({"label": np.zeros(())}, "is float64, expected a class label"),
        ({"words": TEXT}, "there is no condition 'words'"),
        ({"text": TEXT, "mask": MASK[:4]}, "has L = 5, but condition 'mask' has L = 4; they must agree"),
        ({"text": np.array(["a", "b"])}, "a condition is an array of numbers"),
    ],
)
def test_bad_arrays_are_refused_before_anything_is_written(
    fleet: Fleet, saved: Save, tmp_path: Path, arrays: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet("sample", "named", *saved(**arrays), to=tmp_path / "job", **JOB) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--condition", "text=none.npy"], "none.npy' cannot be read: "),
        (["--condition", "strength=1", "--condition", "strength=2"], "--condition strength is given twice"),
        (["--condition", "a", "--condition", "b"], "give each of several conditions with its name"),
        (["--condition", "label=f"], "or one of a, b, c, d, e"),
        (["--condition", "7"], "give them by name"),
        (["--guidance", "[1]"], "--guidance: '[1]' is neither a number nor a JSON object"),
        (["--guidance", "2"], "guidance was given without a condition"),
        (["--negative", "label=1"], "no term of guidance replaces a condition"),
    ],
)
def test_bad_options_are_refused(
    fleet: Fleet, tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fleet("sample", "named", *more, to=tmp_path / "job", **JOB) == 2
    assert message in capsys.readouterr().err


def test_a_missing_condition_is_named(
    fleet: Fleet, saved: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    declared: dict[str, Any] = {"text": {key: value for key, value in DECLARED["text"].items() if key != "null"}}
    declared |= {"mask": DECLARED["mask"], "image": {"dtype": "uint8", "scale": 1 / 255, "null": "zeros"}}
    inputs = ["x", "t", "text", "mask", "image", "label", "strength"]
    import_program(exported(tmp_path)[1], tmp_path / "strict", "strict", inputs=inputs, conditions=DECLARED | declared)
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(tmp_path / "strict"))
    assert fleet("sample", "strict", *saved(label=LABEL), to=tmp_path / "job", **JOB) == 2
    assert "condition 'text' is missing; expected float32 of shape [L up to 6, 4]" in capsys.readouterr().err


def test_an_array_is_stored_as_it_was(tmp_path: Path) -> None:
    plain = np.arange(24).reshape(4, 2, 3)
    for array in (plain, np.asfortranarray(plain.astype(">f8")), plain > 3, plain.astype(">i2")):
        with (tmp_path / "array.npy").open("wb") as file:
            write_array(array, file)
        stored = StoredArray(lambda: (tmp_path / "array.npy").open("rb"))
        np.testing.assert_array_equal(np.load(tmp_path / "array.npy"), array)
        np.testing.assert_array_equal(stored[1:3], array[1:3])
        assert digest_of_array(stored) == digest_of_array(array) == digest_of_array(np.load(tmp_path / "array.npy"))
    assert digest_of_array(plain) != digest_of_array(plain.reshape(4, 3, 2))


def test_a_job_that_was_stopped_before_it_began_can_be_started_again(
    fleet: Fleet, saved: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Target, "_zarr", lambda _: 1 / 0)
        assert fleet("sample", "named", *saved(text=TEXT), to=tmp_path / "job", **JOB | {"format": "zarr"}) == 1
    assert [path.name for path in (tmp_path / "job" / "arrays").iterdir()] == ["conditions.text.npy"]
    assert fleet("sample", "named", *saved(text=TEXT[0]), to=tmp_path / "job", **JOB) == 0


def test_the_only_condition_of_a_model_has_a_row_for_each_sample_too(
    fleet: Fleet, saved: Save, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    for name, condition in (
        ("label", NamedCondition.label(classes=3, null=False)),
        ("vector", NamedCondition.vector(width=2)),
    ):
        net = ResidualMLP(ResidualMLPConfig(dim=2, hidden=16, blocks=1, condition=condition))
        save(tmp_path / "repository", name, net, Decoder.identity((2,)), dataset={}, training={}, seed=0)
    monkeypatch.setenv("PATHLINE_MODELS_DIR", str(tmp_path / "repository"))
    labels, vectors = np.arange(TOTAL) % 3, np.random.default_rng(0).normal(size=(TOTAL, 2))
    for name, each in (("label", labels), ("vector", vectors)):
        assert fleet("sample", name, *saved(condition=each), to=tmp_path / name, **JOB) == 0
        assert fleet("sample", name, *saved(condition=each[4]), to=tmp_path / f"{name}-4", **JOB) == 0
        one, all_of_them = rows_of(tmp_path / f"{name}-4"), rows_of(tmp_path / name)
        assert one[4].tobytes() == all_of_them[4].tobytes()
        assert one[5].tobytes() != all_of_them[5].tobytes()
    (tmp_path / "table.csv").write_text("condition,count\n0,1\n1,1\n2,198\n")  # of a model without a null
    assert fleet("sample", "label", to=tmp_path / "t", conditions=tmp_path / "table.csv", **JOB) == 0
    assert rows_of(tmp_path / "t")[:3].tobytes() == rows_of(tmp_path / "label")[:3].tobytes()
