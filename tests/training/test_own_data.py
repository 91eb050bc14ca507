import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from models.condition import LabelCondition, VectorCondition
from training.config import ImagesData, Recipe, VectorsData
from training.data import pin, prepare
from training.errors import DataError
from training.own_data import read_idx, read_images, read_vectors


def recipe(**data: Any) -> Recipe:
    network = data.pop("network", {})
    return Recipe.model_validate({"name": "m", "epochs": 1, "data": data, "network": network})


def vectors(path: Path, **fields: Any) -> VectorsData:
    return VectorsData(name="vectors", path=str(path), **fields)


def images(path: Path, **fields: Any) -> ImagesData:
    return ImagesData(name="images", path=str(path), **fields)


@pytest.fixture
def rows() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(50, 3)) * [1, 20, 0.1] + [0, 5, -3]


@pytest.fixture
def table(tmp_path: Path, rows: np.ndarray) -> Path:
    lines = [f"{a},{b},{c},{'cat' if a > 0 else 'dog'}" for a, b, c in rows]
    path = tmp_path / "table.csv"
    path.write_text("\n".join(["a,b,c,kind", *lines]) + "\n")
    return path


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    source = np.random.default_rng(0)
    for name in ("left", "right"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for number in range(6):
            pixels = source.integers(0, 256, (8, 4), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{number}.png")
    return tmp_path / "pictures"


def test_rows_are_read_alike_from_each_kind_of_file(tmp_path: Path, rows: np.ndarray, table: Path):
    np.save(tmp_path / "rows.npy", rows)
    np.savez(tmp_path / "rows.npz", x=rows)
    bare = tmp_path / "bare.csv"
    np.savetxt(bare, rows, delimiter=",")
    for config in (vectors(tmp_path / "rows.npy"), vectors(tmp_path / "rows.npz"), vectors(bare)):
        assert np.array_equal(read_vectors(config).samples, rows.astype(np.float32))
    read = read_vectors(vectors(table, label="kind"))
    assert np.allclose(read.samples, rows)
    assert read.condition == LabelCondition(classes=2, names=("cat", "dog"))
    assert read.conditions is not None
    assert read.conditions.tolist() == [int(a <= 0) for a in rows[:, 0]]
    read = read_vectors(vectors(table, columns=["c"], condition=["a", "b"]))
    assert read.samples.shape == (50, 1)
    assert read.condition == VectorCondition(width=2)


def test_own_rows_are_scaled_split_and_decoded_back(tmp_path: Path, rows: np.ndarray):
    np.save(tmp_path / "rows.npy", rows)
    data = prepare(recipe(name="vectors", path=str(tmp_path / "rows.npy"), held_out=0.2))
    assert (len(data.train), len(data.reference)) == (40, 10)
    assert np.allclose(data.train.std(0), 1, atol=1e-5)
    whole = data.decoder.decode(torch.from_numpy(np.concatenate([data.train, data.reference]))).numpy()
    assert np.allclose(np.sort(whole, 0), np.sort(rows, 0), atol=1e-4)


def test_changed_data_are_another_recipe_and_moved_data_are_not(tmp_path: Path, rows: np.ndarray):
    for name, content in (("a", rows), ("b", rows), ("c", rows + 1)):
        np.save(tmp_path / f"{name}.npy", content)
    hashes = [pin(recipe(name="vectors", path=str(tmp_path / f"{name}.npy"))).hash for name in "abc"]
    assert hashes[0] == hashes[1] != hashes[2]
    with pytest.raises(DataError, match="are not those of the recipe"):
        pin(recipe(name="vectors", path=str(tmp_path / "a.npy"), sha256="0" * 64))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is empty"),
        ("a,b\n", r"shape \(0, 2\)"),
        ("a,b\n1,2\n3\n", "row 3 has 1 columns; the first row has 2"),
        ("a,b\n1,x\n", "row 2, column b is 'x'; a number is needed"),
        ("a,b\n1,nan\n1,2\n", "1 numbers that are not finite"),
        ("a,b\n1,1e300\n", "not finite in float32"),
        ("a\n1\n2\n", "has 2 samples; at least 3"),
        ("a\n1\n1\n1\n1\n", "all samples are the same"),
    ],
)
def test_bad_tables_are_explained(tmp_path: Path, content: str, said: str):
    path = tmp_path / "bad.csv"
    path.write_text(content)
    with pytest.raises(DataError, match=said):
        prepare(recipe(name="vectors", path=str(path)))


def test_bad_files_are_explained(tmp_path: Path, rows: np.ndarray, table: Path):
    np.savez(tmp_path / "two.npz", x=rows, y=rows)
    np.save(tmp_path / "deep.npy", rows[None])
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:200])
    cases = [
        (vectors(tmp_path / "none.npy"), "cannot be read: No such file"),
        (vectors(tmp_path / "rows.txt"), "is no .npy, .npz or .csv"),
        (vectors(tmp_path / "two.npz"), "has the arrays x, y; name the samples"),
        (vectors(tmp_path / "two.npz", columns=["z"]), "no array 'z' left; it has x, y"),
        (vectors(tmp_path / "deep.npy"), r"of shape \(1, 50, 3\)"),
        (vectors(tmp_path / "deep.npy", label="y"), "an .npy file has no labels"),
        (vectors(tmp_path / "objects.npy"), "holds Python objects"),
        (vectors(tmp_path / "torn.npz"), "is damaged"),
        (vectors(table), "row 2, column kind is"),
        (vectors(table, columns=["d"]), "no column 'd'; it has a, b, c, kind"),
        (vectors(table, label="kind", condition=["a"]), "label and condition are both given"),
    ]
    for config, said in cases:
        with pytest.raises(DataError, match=said):
            read_vectors(config)
    with pytest.raises(DataError, match=r"data\.path is not given"):
        pin(recipe(name="vectors"))


def test_pictures_of_a_folder_with_their_classes(pictures: Path):
    read = read_images(images(pictures, conditional=True))
    assert read.samples.shape == (12, 1, 8, 4)
    assert read.condition == LabelCondition(classes=2, names=("left", "right"))
    assert read_images(images(pictures, colour=True)).samples.shape == (12, 3, 8, 4)
    unet = {"architecture": "unet", "hidden": 4}
    data = prepare(recipe(name="images", path=str(pictures), colour=True, network=unet))
    assert data.train.shape == (11, 3, 8, 4)
    assert data.decoder.decode(torch.from_numpy(data.train)).shape == (11, 3, 8, 4)
    assert prepare(recipe(name="images", path=str(pictures), network=unet)).decoder.data_shape == (8, 4)
    assert prepare(recipe(name="images", path=str(pictures), components=5)).train.shape == (11, 5)


def test_bad_pictures_are_explained(pictures: Path, tmp_path: Path):
    with pytest.raises(DataError, match=r"too few for data\.components = 20"):
        prepare(recipe(name="images", path=str(pictures), components=20))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="has no pictures"):
        read_images(images(tmp_path / "empty"))
    Image.new("L", (9, 9)).save(pictures / "odd.png")
    with pytest.raises(DataError, match=r"odd.png is 9 x 9 pixels|is 4 x 8 pixels"):
        read_images(images(pictures))
    (pictures / "odd.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"odd.png is no picture"):
        read_images(images(pictures))


def test_idx_files_with_their_labels(tmp_path: Path):
    pixels = np.arange(60, dtype=np.uint8).reshape(5, 4, 3)
    (tmp_path / "p").write_bytes(bytes([0, 0, 8, 3]) + struct.pack(">III", 5, 4, 3) + pixels.tobytes())
    (tmp_path / "l").write_bytes(bytes([0, 0, 8, 1]) + struct.pack(">I", 5) + bytes([3, 1, 3, 1, 1]))
    read = read_images(images(tmp_path / "p", conditional=True, labels=str(tmp_path / "l")))
    assert np.array_equal(read.samples[:, 0] * 255, pixels)
    assert read.condition == LabelCondition(classes=2, names=("1", "3"))
    with pytest.raises(DataError, match=r"needs data\.labels"):
        read_images(images(tmp_path / "p", conditional=True))
    with pytest.raises(DataError, match=r"5 pictures need \(5,\)"):
        read_images(images(tmp_path / "p", conditional=True, labels=str(tmp_path / "p")))
    (tmp_path / "p").write_bytes((tmp_path / "p").read_bytes()[:-1])
    with pytest.raises(DataError, match="it has 59 bytes"):
        read_idx(tmp_path / "p")
    (tmp_path / "p").write_bytes(b"")
    with pytest.raises(DataError, match="begins with nothing"):
        read_idx(tmp_path / "p")
