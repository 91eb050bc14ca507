"""Pictures of one size, from a folder of files or an IDX file."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.data_config import ImagesData
from training.errors import DataError
from training.own.idx import read_idx
from training.own.read import Read, classes

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read_images(config: ImagesData) -> Read:
    """Read a folder of pictures or an IDX file.

    Raises:
        DataError: there is none, one cannot be read, or their sizes differ.
    """
    path = Path(config.path)
    if not path.is_dir():
        return _read_idx_images(path, config)
    from PIL import Image, UnidentifiedImageError

    files = picture_files(path)
    pictures: list[NDArray[np.uint8]] = []
    for file in files:
        try:
            with Image.open(file) as image:
                pictures.append(np.asarray(image.convert("RGB" if config.colour else "L")))
        except (OSError, UnidentifiedImageError, Image.DecompressionBombError, ValueError, SyntaxError) as error:
            raise DataError(f"data {file} is no picture that can be read: {str(error).splitlines()[0]}") from None
        if pictures[-1].shape != pictures[0].shape:
            size, first = pictures[-1].shape[:2], pictures[0].shape[:2]
            raise DataError(
                f"data {file} is {size[1]} x {size[0]} pixels, {files[0].name} is {first[1]} x {first[0]}; all must be "
                "of one size: resize them first"
            )
    stack = np.stack(pictures)
    samples = (stack[:, None] if stack.ndim == 3 else np.moveaxis(stack, -1, 1)).astype(np.float32) / np.float32(255)
    if not config.conditional:
        return Read(samples)
    if any(file.parent == path for file in files):
        raise DataError(f"data {path}: data.conditional needs each picture in a subfolder named for its class")
    return Read(samples, *classes(path, np.array([file.relative_to(path).parts[0] for file in files])))


def picture_files(folder: Path) -> list[Path]:
    """The pictures in a folder and its subfolders, in the order of their names.

    Raises:
        DataError: there are none.
    """
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in PICTURES and file.is_file())
    if not files:
        raise DataError(f"data {folder} has no pictures; looked for {', '.join(PICTURES)} there and in its subfolders")
    return files


def _read_idx_images(path: Path, config: ImagesData) -> Read:
    pixels = read_idx(path)
    if pixels.ndim != 3 or not pixels.size:
        raise DataError(
            f"data {path} holds bytes of shape {pixels.shape}; pictures (samples, height, width) are needed"
        )
    samples = pixels[:, None].astype(np.float32) / np.float32(255)
    if not config.conditional:
        return Read(samples)
    if not config.labels:
        raise DataError("data.conditional needs data.labels, the IDX file of the labels")
    labels = read_idx(Path(config.labels))
    if labels.shape != (len(samples),):
        raise DataError(
            f"data {config.labels} has shape {labels.shape}; {len(samples)} pictures need ({len(samples)},)"
        )
    return Read(samples, *classes(Path(config.labels), labels))
