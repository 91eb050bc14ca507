from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.conditions import NamedCondition
from training.data_config import VectorsData
from training.errors import DataError
from training.user_data.rows import read_vectors


def vectors(path: Path, **fields: Any) -> VectorsData:
    return VectorsData(name="vectors", path=str(path), **fields)


def test_rows_are_read_alike_from_each_kind_of_file(tmp_path: Path, rows: np.ndarray, table: Path):
    np.save(tmp_path / "rows.npy", rows)
    np.savez(tmp_path / "rows.npz", x=rows)
    bare = tmp_path / "bare.csv"
    np.savetxt(bare, rows, delimiter=",")
    for config in (vectors(tmp_path / "rows.npy"), vectors(tmp_path / "rows.npz"), vectors(bare)):
        assert np.array_equal(read_vectors(config).samples, rows)
    read = read_vectors(vectors(table, label="kind"))
    assert np.allclose(read.samples, rows)
    assert read.condition == NamedCondition.label(classes=2, names=("cat", "dog"))
    assert read.conditions is not None
    assert read.conditions.tolist() == [int(a <= 0) for a in rows[:, 0]]
    read = read_vectors(vectors(table, columns=["c"], condition=["a", "b"]))
    assert read.samples.shape == (50, 1)
    assert read.condition == NamedCondition.vector(width=2)


def test_bad_files_are_explained(tmp_path: Path, rows: np.ndarray, table: Path):
    np.savez(tmp_path / "two.npz", x=rows, y=rows)
    np.save(tmp_path / "deep.npy", rows[None])
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:200])
    (tmp_path / "blank.npy").touch()
    np.savez(tmp_path / "short.npz", x=rows, kind=np.arange(49))
    cases = [
        (vectors(tmp_path / "short.npz", columns=["x"], label="kind"), r"labels have shape \(49,\); one per sample"),
        (vectors(tmp_path / "none.npy"), "cannot be read: No such file"),
        (vectors(tmp_path / "blank.npy"), "blank.npy is empty"),
        (vectors(tmp_path / "rows.txt"), "is not a .npy, .npz, .csv or .tsv"),
        (vectors(tmp_path / "two.npz"), "has the arrays x, y; name the samples"),
        (vectors(tmp_path / "two.npz", columns=["z"]), "no array 'z' left; it has x, y"),
        (vectors(tmp_path / "deep.npy"), r"of shape \(1, 50, 3\)"),
        (vectors(tmp_path / "deep.npy", label="y"), "an .npy file has no labels"),
        (vectors(tmp_path / "objects.npy"), "contains Python objects"),
        (vectors(tmp_path / "torn.npz"), "is damaged"),
        (vectors(table), "line 2, column kind is"),
        (vectors(table, columns=["d"]), "no column 'd'; it has a, b, c, kind"),
        (vectors(table, label="kind", condition=["a"]), "label and condition are both given"),
    ]
    for config, message in cases:
        with pytest.raises(DataError, match=message):
            read_vectors(config)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.array([[2**53 + 1, 1], [5, 2]]), r"the first 9007199254740993 in sample 0, column 0 .*beyond 2\^53"),
        (np.array([[1, 1], [2, 2**64 - 1]], np.uint64), "the first 18446744073709551615 in sample 1, column 1"),
        (np.array([[1e17], [1e17 + 16]]), "column 0 of the samples is near 1e.17 and varies by only 16"),
        (np.array([[1.0], [np.inf]]), "the first inf in sample 1, column 0 .*not finite in float32"),
        (np.array([[1e39], [1.0]]), "not finite in float32"),
    ],
)
def test_numbers_that_cannot_be_kept_are_refused(tmp_path: Path, rows: np.ndarray, message: str):
    np.save(tmp_path / "a.npy", rows)
    with pytest.raises(DataError, match=message):
        read_vectors(vectors(tmp_path / "a.npy"))


@pytest.mark.parametrize("dtype", [">f8", "f4", "f2", "i8", "u1", "?"])
def test_numbers_of_every_type_become_float64(tmp_path: Path, dtype: str):
    rows = np.array([[0, 1], [1, 1], [1, 0]]).astype(dtype)
    np.save(tmp_path / "a.npy", rows)
    samples = read_vectors(vectors(tmp_path / "a.npy")).samples
    assert samples.dtype == np.float64
    np.testing.assert_array_equal(samples, rows)


@pytest.mark.parametrize("labels", [["a", "", "b"], ["a", "nan", "b"], [1.0, float("nan"), 2.0]])
def test_missing_labels_of_an_array_are_refused(tmp_path: Path, labels: list[Any]):
    np.savez(tmp_path / "a.npz", x=np.eye(3), y=np.array(labels))
    with pytest.raises(DataError, match=r"the label of sample 1 \(counted from 0\) is missing: it is"):
        read_vectors(vectors(tmp_path / "a.npz", columns=["x"], label="y"))


def test_conditions_that_float64_cannot_tell_apart_are_refused(tmp_path: Path):
    np.savez(tmp_path / "a.npz", x=np.eye(3), c=np.array([[1e17], [1e17 + 16], [1e17 + 32]]))
    with pytest.raises(DataError, match=r"column c of the conditions is near 1e\+17 .* which float64 resolves too"):
        read_vectors(vectors(tmp_path / "a.npz", columns=["x"], condition=["c"]))
