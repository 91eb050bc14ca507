import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from models.decoder import Decoder
from training.errors import DataError
from training.experiments.classifier import labels, project, read_labels, train_judge


def written(path: Path, magic: int, count: int, content: bytes) -> Path:
    path.write_bytes(gzip.compress(struct.pack(">II", magic, count) + content))
    return path


def test_labels_are_read(tmp_path: Path):
    assert read_labels(written(tmp_path / "l.gz", 0x801, 3, bytes([7, 0, 9])), 3).tolist() == [7, 0, 9]


@pytest.mark.parametrize(
    ("magic", "count", "content", "match"),
    [
        (0x803, 3, b"\0\1\2", "no IDX file of 3 labels"),
        (0x801, 2, b"\0\1\2", "no IDX file of 3 labels"),
        (0x801, 3, b"\0\1", "no IDX file of 3 labels"),
        (0x801, 3, b"\0\1\x0b", "holds the label 11; labels are 0 to 9"),
    ],
)
def test_what_are_no_labels_is_named(tmp_path: Path, magic: int, count: int, content: bytes, match: str):
    with pytest.raises(DataError, match=match):
        read_labels(written(tmp_path / "l.gz", magic, count, content), 3)


def test_files_that_cannot_be_read_are_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"gone\.gz cannot be read: No such file"):
        read_labels(tmp_path / "gone.gz", 3)
    (tmp_path / "half.gz").write_bytes(gzip.compress(bytes(100))[:20])
    with pytest.raises(DataError, match=r"half\.gz is damaged"):
        read_labels(tmp_path / "half.gz", 3)
    with pytest.raises(DataError, match="has no MNIST labels: put train-labels"):
        labels(tmp_path, 3, 3)


def test_projecting_is_the_inverse_of_decoding_up_to_what_pca_drops():
    basis, _ = np.linalg.qr(np.random.default_rng(0).normal(size=(784, 5)))
    components = torch.tensor(basis.T, dtype=torch.float32)
    decoder = Decoder.pca(torch.full((784,), 0.5), components, torch.full((5,), 0.2), (28, 28))
    latent = np.random.default_rng(1).normal(size=(6, 5))
    pixels = decoder.decode(torch.tensor(latent, dtype=torch.float32)).reshape(6, 784).numpy() * 255
    np.testing.assert_allclose(project(decoder, pixels), latent, atol=1e-5)


def test_the_judge_is_sure_of_what_it_was_trained_on_and_not_of_noise(tmp_path: Path):
    """Ten kinds of plain pictures: a bright block at one of ten places."""
    source = np.random.default_rng(0)
    for name, count in (("train", 600), ("t10k", 100)):
        kinds = np.arange(count) % 10
        pictures = source.integers(0, 60, size=(count, 28, 28))
        for k in range(10):
            pictures[kinds == k, 2 * k : 2 * k + 6, 8:20] += 180
        header = struct.pack(">IIII", 0x803, count, 28, 28)
        images = gzip.compress(header + pictures.astype(np.uint8).tobytes(), compresslevel=1)
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(images)
        written(tmp_path / f"{name}-labels-idx1-ubyte.gz", 0x801, count, kinds.astype(np.uint8).tobytes())
    identity = Decoder.pca(torch.full((784,), 0.3), torch.eye(784), torch.full((784,), 0.3), (28, 28))
    judge = train_judge(tmp_path, identity, 500)
    assert judge.accuracy > 0.95
    assert judge.digits == 500
    assert judge.sure(np.zeros((4, 784))) < 1
    assert judge.classes(np.zeros((4, 784))).sum() == 4
