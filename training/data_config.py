"""The `[data]` table of a recipe: the name of the data set, and its settings."""

import math
import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import ConfigDict, Field, field_validator

from models.frozen import Frozen

CONFIGS = Path(__file__).parent / "configs"
"""Folder of the shipped recipes."""


class RecipeTable(Frozen):
    """Base of the tables of a recipe: immutable, with strict types and no unknown keys."""

    model_config = ConfigDict(strict=True)


class PointsData(RecipeTable):
    """Two interleaved half circles (moons) or two concentric circles, 2-D, made by scikit-learn.

    Attributes:
        samples: number of points, half of them on each curve.
        noise: standard deviation of the Gaussian noise added to each coordinate.
    """

    name: Literal["moons", "circles"]
    samples: int = Field(default=2000, ge=2, le=10_000_000)
    noise: float = Field(default=0.05, ge=0, le=10)


class DigitsData(RecipeTable):
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels.

    Attributes:
        held_out: number of digits held out from training for evaluation.
        conditional: give the network the digit as class label.
    """

    name: Literal["digits"]
    held_out: int = Field(default=261, ge=1, le=1700)
    conditional: bool = False

    @property
    def samples(self) -> int:
        """Number of digits to train on."""
        return 1797 - self.held_out


class MnistData(RecipeTable):
    """MNIST's 28 x 28 handwritten digits, as principal components or pixels.

    Attributes:
        samples: number of the 60,000 training digits to use.
        components: principal components kept; 0 keeps the pixels.
        conditional: give the network the digit as class label.
    """

    name: Literal["mnist"]
    samples: int = Field(default=10_000, ge=2, le=60_000)
    components: int = Field(default=64, ge=0, le=784)
    conditional: bool = False


class OwnData(RecipeTable):
    """Data of your own.

    Attributes:
        path: file or folder of the data.
        sha256: hash of their content. It represents them in the recipe's hash, so changed data make another recipe. It
            is filled in before the data are read; if given, it must match.
        held_out: share of the samples held out from training for evaluation.
    """

    path: str = ""
    sha256: str = Field(default="", pattern="^([0-9a-f]{64})?$")
    held_out: float = Field(default=0.1, gt=0, le=0.5)


class VectorsData(OwnData):
    """Rows of numbers from a .npy, .npz or .csv file, each column scaled.

    Attributes:
        columns: data columns of the .csv; empty: all except labels and conditions. For an .npz, the one array.
        label: column of the .csv, or array of the .npz, with class labels: numbers or words.
        condition: columns of the .csv, or the one array of the .npz, with a condition vector.
        separator: what is between the columns of the .csv; a .tsv has tabs.
        header: whether the first line of the .csv has column names: `yes`, `no`, or `auto`, which decides by the
            content of the line and refuses a line that may be either.
        scale: `standard`, to mean 0 and standard deviation 1; or `robust`, to median 0 and interquartile range 1.349,
            for columns with a few values far from the others.
        round: whether samples are rounded in the columns that have whole numbers in every row.
        transforms: `auto` learns the logarithm of columns without negative values that are skewed, and whose logarithm
            is much less so, and the quantiles of other columns with long tails; `none` transforms only the columns of
            `nonnegative` and `quantile`.
        nonnegative: columns whose logarithm is learned, so that no sample is negative.
        quantile: columns of which normal scores of the quantiles are learned, whatever their distribution.
    """

    name: Literal["vectors"]
    columns: list[str] = Field(default_factory=list)
    label: str = ""
    condition: list[str] = Field(default_factory=list)
    separator: str = ","
    header: Literal["auto", "yes", "no"] = "auto"
    scale: Literal["standard", "robust"] = "standard"
    round: bool = True
    transforms: Literal["auto", "none"] = "auto"
    nonnegative: list[str] = Field(default_factory=list)
    quantile: list[str] = Field(default_factory=list)

    @field_validator("separator")
    @classmethod
    def _one_character(cls, value: str) -> str:
        value = "\t" if value in ("tab", "\\t") else value
        if len(value) != 1 or value.isalnum() or value in '"\r\n':
            raise ValueError("use one character, such as ';', or tab")
        return value


class ImagesData(OwnData):
    """Pictures of one size: a folder of PNG, TIFF, JPEG ... files, an array (.npy, .npz) or an IDX file (also gzipped).

    Attributes:
        conditional: train with class labels: the subfolder of each picture, or the file `labels`.
        labels: an IDX or .npy file of labels, one per picture, for pictures stored in one file.
        colour: keep three colours; otherwise pictures become grey.
        background: the colour behind transparent pixels: white, black or #rrggbb. Without one they are refused.
        range: the stored values of black and white; empty: 0, and white according to the depth of each picture.
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
            raise ValueError("use white, black or six hexadecimal digits such as '#ff8000'")
        return value

    @field_validator("range")
    @classmethod
    def _ascending(cls, value: list[float]) -> list[float]:
        if value and not (
            len(value) == 2 and math.isfinite(value[0]) and math.isfinite(value[1]) and value[0] < value[1]
        ):
            raise ValueError("give two finite numbers, black and white, the lower one first")
        return value


DataConfig = Annotated[PointsData | DigitsData | MnistData | VectorsData | ImagesData, Field(discriminator="name")]
SECTIONS: dict[str, type[RecipeTable]] = {
    name: section
    for section in (PointsData, DigitsData, MnistData, VectorsData, ImagesData)
    for name in get_args(section.model_fields["name"].annotation)
}
"""The tables of all data sets by their names."""

DATASETS = tuple(SECTIONS)
"""The names of all data sets, which are also the names of shipped recipes."""
