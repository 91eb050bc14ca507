from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.condition import LabelCondition, VectorCondition
from training.data_config import VectorsData
from training.errors import DataError
from training.own.rows import read_vectors


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
    assert read.condition == LabelCondition(classes=2, names=("cat", "dog"))
    assert read.conditions is not None
    assert read.conditions.tolist() == [int(a <= 0) for a in rows[:, 0]]
    read = read_vectors(vectors(table, columns=["c"], condition=["a", "b"]))
    assert read.samples.shape == (50, 1)
    assert read.condition == VectorCondition(width=2)


def test_bad_files_are_explained(tmp_path: Path, rows: np.ndarray, table: Path):
    np.savez(tmp_path / "two.npz", x=rows, y=rows)
    np.save(tmp_path / "deep.npy", rows[None])
    np.save(tmp_path / "objects.npy", np.array([{}, 1], dtype=object), allow_pickle=True)
    (tmp_path / "torn.npz").write_bytes((tmp_path / "two.npz").read_bytes()[:200])
    (tmp_path / "blank.npy").touch()
    np.savez(tmp_path / "short.npz", x=rows, kind=np.arange(49))
    cases = [
        (vectors(tmp_path / "short.npz", columns=["x"], label="kind"), r"labels have shape \(49,\); one a sample"),
        (vectors(tmp_path / "none.npy"), "cannot be read: No such file"),
        (vectors(tmp_path / "blank.npy"), "blank.npy is empty"),
        (vectors(tmp_path / "rows.txt"), "is no .npy, .npz or .csv"),
        (vectors(tmp_path / "two.npz"), "has the arrays x, y; name the samples"),
        (vectors(tmp_path / "two.npz", columns=["z"]), "no array 'z' left; it has x, y"),
        (vectors(tmp_path / "deep.npy"), r"of shape \(1, 50, 3\)"),
        (vectors(tmp_path / "deep.npy", label="y"), "an .npy file has no labels"),
        (vectors(tmp_path / "objects.npy"), "holds Python objects"),
        (vectors(tmp_path / "torn.npz"), "is damaged"),
        (vectors(table), "line 2, column kind is"),
        (vectors(table, columns=["d"]), "no column 'd'; it has a, b, c, kind"),
        (vectors(table, label="kind", condition=["a"]), "label and condition are both given"),
    ]
    for config, said in cases:
        with pytest.raises(DataError, match=said):
            read_vectors(config)
