import gzip
import struct
from pathlib import Path

import numpy as np
import torch

from models.decoder import Decoder
from studies.experiments.classifier import project, train_judge


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
        numbers = gzip.compress(struct.pack(">II", 0x801, count) + kinds.astype(np.uint8).tobytes())
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(numbers)
    identity = Decoder.pca(torch.full((784,), 0.3), torch.eye(784), torch.full((784,), 0.3), (28, 28))
    judge = train_judge(tmp_path, identity, 500)
    assert judge.accuracy > 0.95
    assert judge.digits == 500
    assert judge.sure(np.zeros((4, 784))) < 1
    assert judge.classes(np.zeros((4, 784))).sum() == 4
