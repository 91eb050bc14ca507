import gzip
import struct
from pathlib import Path

import numpy as np
import pytest

from training import mnist
from training.errors import DataError

TRAIN = "train-images-idx3-ubyte.gz"


def test_reads_the_folder_itself_or_its_subfolder(mnist_dir: Path):
    outer, inner = mnist.load(mnist_dir), mnist.load(mnist_dir / "mnist")
    assert outer[0].shape == (400, 784)
    assert outer[1].shape == (120, 784)
    assert np.array_equal(outer[0], inner[0])


def test_pixels_keep_their_place(tmp_path: Path):
    picture = np.arange(784, dtype=np.uint8)
    path = tmp_path / "one.gz"
    path.write_bytes(gzip.compress(struct.pack(">IIII", 0x803, 1, 28, 28) + picture.tobytes()))
    assert np.array_equal(mnist.read_digits(path)[0], picture)


def header(magic: int = 0x803, count: int = 1, height: int = 28, width: int = 28) -> bytes:
    return struct.pack(">IIII", magic, count, height, width)


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "begins with nothing"),
        (b"not gzip at all", "begins with 6e 6f 74 20"),
        (gzip.compress(header() + bytes(784))[:-12], "damaged"),
        (gzip.compress(b"abc"), "begins with 61 62 63"),
        (gzip.compress(header(magic=0x801) + bytes(784)), r"promises \(1,\); it has 792 bytes"),
        (gzip.compress(header(height=32) + bytes(896)), r"has shape \(1, 32, 28\); pictures of 28 x 28"),
        (gzip.compress(header(count=2) + bytes(784)), r"promises \(2, 28, 28\); it has 784 bytes"),
    ],
    ids=["empty", "no gzip", "half", "too few", "magic", "size", "count"],  # the bytes contain the current time
)
def test_damaged_files_are_named(mnist_dir: Path, content: bytes, match: str):
    path = mnist_dir / "mnist" / TRAIN
    path.write_bytes(content)
    with pytest.raises(DataError, match=match) as caught:
        mnist.load(mnist_dir)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_wrong_folder_are_named(mnist_dir: Path, tmp_path: Path):
    (mnist_dir / "mnist" / TRAIN).unlink()
    with pytest.raises(DataError, match=f"{TRAIN} cannot be read: No such file"):
        mnist.load(mnist_dir)
    with pytest.raises(DataError, match="elsewhere has no MNIST"):
        mnist.load(tmp_path / "elsewhere")


def test_download_is_split_where_mnist_splits(monkeypatch: pytest.MonkeyPatch):
    pixels = np.zeros((70_000, 784), dtype=np.uint8)
    pixels[60_000] = 9

    def fetch(name: str, **options: object) -> tuple[np.ndarray, None]:
        assert (name, options["as_frame"], options["parser"]) == ("mnist_784", False, "liac-arff")
        return pixels, None

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    train, test, source = mnist.load(None)
    assert (len(train), len(test), test[0, 0], train[-1, 0]) == (60_000, 10_000, 9, 0)
    assert "fetch_openml" in source


def test_a_failed_download_says_what_to_do(monkeypatch: pytest.MonkeyPatch):
    def fetch(name: str, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setattr("sklearn.datasets.fetch_openml", fetch)
    with pytest.raises(DataError, match=r"no route to host.*--data-dir"):
        mnist.load(None)
