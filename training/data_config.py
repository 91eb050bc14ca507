"""The part of a recipe that names its data set, with that data set's settings."""

import math
import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator

CONFIGS = Path(__file__).parent / "configs"
"""The recipes that ship."""


class Frozen(BaseModel):
    """A table of a recipe: fixed once read, of exact types, without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class PointsData(Frozen):
    """Two interleaved half circles (moons) or two concentric circles, 2-D, made by scikit-learn.

    Attributes:
        samples: how many points, half of them on each curve.
        noise: standard deviation of the Gaussian noise added to each coordinate.
    """

    name: Literal["moons", "circles"]
    samples: int = Field(default=2000, ge=2, le=10_000_000)
    noise: float = Field(default=0.05, ge=0, le=10)


class DigitsData(Frozen):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels.

    Attributes:
        held_out: how many of them are kept from training, to evaluate on.
        conditional: give the network the digit as class label.
    """

    name: Literal["digits"]
    held_out: int = Field(default=261, ge=1, le=1700)
    conditional: bool = False


class MnistData(Frozen):
    """MNIST's 28 x 28 handwritten digits, in principal components.

    Attributes:
        samples: how many of the 60,000 training digits are used.
        components: principal components kept; 0 keeps the pixels.
        conditional: give the network the digit as class label.
    """

    name: Literal["mnist"]
    samples: int = Field(default=10_000, ge=2, le=60_000)
    components: int = Field(default=64, ge=0, le=784)
    conditional: bool = False


class _OwnData(Frozen):
    """Data of your own.

    Attributes:
        path: where they are.
        sha256: hash of their content. It stands for them in the recipe's hash, so changed data are another recipe; it
            is filled in before they are read, and compared where it is given.
        held_out: part of the samples kept from training, to evaluate on.
    """

    path: str = ""
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    held_out: float = Field(default=0.1, gt=0, le=0.5)


class VectorsData(_OwnData):
    """Rows of numbers from a .npy, .npz or .csv file; each column is scaled to mean 0 and spread 1.

    Attributes:
        columns: columns of the .csv that are data; none: all but labels and conditions. In an .npz, the one array.
        label: column of the .csv, or array of the .npz, with class labels: numbers or words.
        condition: columns of the .csv, or the one array of the .npz, with a condition vector.
        header: whether the first line of the .csv has names of columns: `yes`, `no`, or `auto`, which goes by what
            stands there and refuses what may be either.
    """

    name: Literal["vectors"]
    columns: list[str] = []
    label: str = ""
    condition: list[str] = []
    header: Literal["auto", "yes", "no"] = "auto"


class ImagesData(_OwnData):
    """Pictures of one size: a folder of PNG, TIFF, JPEG ... files, an array (.npy, .npz) or an IDX file (also gzipped).

    Attributes:
        conditional: class labels: the subfolder a picture lies in, or the file of `labels`.
        labels: an IDX or .npy file of labels, one a picture, for pictures of one file.
        colour: keep three colours; else grey.
        background: the colour behind transparent pixels: white, black or #rrggbb. Without one they are refused.
        range: the stored values that are black and white; none: 0 and what the depth of a picture says.
        components: principal components kept; 0 keeps the pixels.
    """

    name: Literal["images"]
    conditional: bool = False
    labels: str = ""
    colour: bool = False
    background: str = ""
    range: list[float] = Field(default=[], max_length=2)
    components: int = Field(default=0, ge=0, le=1 << 16)

    @field_validator("background")
    @classmethod
    def _colour(cls, value: str) -> str:
        if not re.fullmatch("(white|black|#[0-9a-fA-F]{6})?", value):
            raise ValueError("white, black or six hexadecimal digits as in '#ff8000' are needed")
        return value

    @field_validator("range")
    @classmethod
    def _ascending(cls, value: list[float]) -> list[float]:
        if value and not (
            len(value) == 2 and math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] < value[1]
        ):
            raise ValueError("two finite numbers are needed, black and white, the lower first")
        return value


OwnData = VectorsData | ImagesData
DataConfig = Annotated[PointsData | DigitsData | MnistData | VectorsData | ImagesData, Field(discriminator="name")]
DATASETS: tuple[str, ...] = tuple(
    name
    for section in (PointsData, DigitsData, MnistData, VectorsData, ImagesData)
    for name in get_args(section.model_fields["name"].annotation)
)
"""The names of all data sets, which are also the names of the recipes that ship."""
