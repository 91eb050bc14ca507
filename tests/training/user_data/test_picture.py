"""Every mode and depth becomes the same picture, or is refused with advice."""

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, TiffImagePlugin

from training.data_config import ImagesData
from training.errors import DataError
from training.user_data.pictures import read_images

RAMP = np.linspace(0, 1, 24).reshape(4, 6)


def read(folder: Path, **fields: Any) -> np.ndarray:
    return read_images(ImagesData(name="images", path=str(folder), **fields)).samples


def notes_of(folder: Path, **fields: Any) -> tuple[str, ...]:
    return read_images(ImagesData(name="images", path=str(folder), **fields)).notes


def made(values: np.ndarray, mode: str) -> Image.Image:
    return Image.fromarray(values) if mode == "plain" else Image.fromarray(values).convert(mode)


GREYS = [
    ("8.png", (RAMP * 255).round().astype(np.uint8), "plain", 1 / 255),
    ("16.png", (RAMP * 65535).round().astype(np.uint16), "plain", 1 / 65535),
    ("16.tif", (RAMP * 65535).round().astype(np.uint16), "plain", 1 / 65535),
    ("float.tif", RAMP.astype(np.float32), "plain", 1e-6),
    ("rgb.png", (RAMP * 255).round().astype(np.uint8), "RGB", 1 / 255),
    ("opaque.png", (RAMP * 255).round().astype(np.uint8), "RGBA", 1 / 255),
    ("la.png", (RAMP * 255).round().astype(np.uint8), "LA", 1 / 255),
    ("palette.png", (RAMP * 255).round().astype(np.uint8), "P", 1 / 255),
    ("palette.gif", (RAMP * 255).round().astype(np.uint8), "P", 1 / 255),
    ("cmyk.tif", (RAMP * 255).round().astype(np.uint8), "CMYK", 2 / 255),
]


@pytest.mark.parametrize(("name", "values", "mode", "close"), GREYS, ids=[case[0] for case in GREYS])
@pytest.mark.parametrize("colour", [False, True])
def test_a_ramp_is_a_ramp_in_every_mode(
    tmp_path: Path, name: str, values: np.ndarray, mode: str, close: float, colour: bool
):
    made(values, mode).save(tmp_path / name)
    samples = read(tmp_path, colour=colour)
    assert samples.shape == (1, 3 if colour else 1, 4, 6)
    assert samples.dtype == np.float32
    np.testing.assert_allclose(samples[0], np.broadcast_to(RAMP, samples[0].shape), atol=close)


def test_black_and_white_is_0_and_1(tmp_path: Path):
    Image.fromarray(RAMP > 0.5).save(tmp_path / "1.png")
    np.testing.assert_array_equal(read(tmp_path)[0, 0], RAMP > 0.5)


def test_pictures_of_8_bits_keep_their_bits(tmp_path: Path):
    values = np.arange(256, dtype=np.uint8).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / "all.png")
    assert np.array_equal(read(tmp_path)[0, 0], values.astype(np.float32) / np.float32(255))


def test_twelve_bits_have_their_own_white_and_white_may_be_zero(tmp_path: Path):
    values = (RAMP * 65535).round().astype(np.uint16)
    info = TiffImagePlugin.ImageFileDirectory_v2()
    info[262] = 0  # WhiteIsZero
    Image.fromarray(values).save(tmp_path / "inverted.tif", tiffinfo=info)
    with Image.open(tmp_path / "inverted.tif") as image:
        assert (image.mode, image.tag_v2[262]) == ("I;16", 0)  # type: ignore[attr-defined]
    np.testing.assert_allclose(read(tmp_path)[0, 0], 1 - RAMP, atol=1e-4)


def test_16_bit_colour_is_read_with_8_and_said_so(tmp_path: Path):
    pixels = np.repeat((RAMP * 65535).round().astype(">u2")[:, :, None], 3, axis=2)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 6, 4, 16, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    (tmp_path / "48.png").write_bytes(png)
    np.testing.assert_allclose(read(tmp_path)[0, 0], RAMP, atol=1 / 255)
    assert "1 of 16-bit, read with 8 colour (RGB), values 0 to 255, white is 255" in notes_of(tmp_path)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", ["png", "jpg", "tif"])
def test_orientation_is_applied_before_sizes_are_compared(tmp_path: Path, orientation: int, suffix: str):
    upright = Image.new("L", (16, 8))
    upright.paste(255, (8, 0, 16, 4))  # the upper right quarter
    back = {2: "FLIP_LEFT_RIGHT", 3: "ROTATE_180", 4: "FLIP_TOP_BOTTOM", 5: "TRANSPOSE"}
    back |= {6: "ROTATE_90", 7: "TRANSVERSE", 8: "ROTATE_270"}
    stored = upright.transpose(getattr(Image.Transpose, back[orientation])) if orientation > 1 else upright
    exif = Image.Exif()
    exif[0x0112] = orientation
    stored.save(tmp_path / f"a.{suffix}", exif=exif)
    upright.save(tmp_path / f"b.{suffix}")
    samples = read(tmp_path)
    assert samples.shape == (2, 1, 8, 16)
    np.testing.assert_allclose(samples[0], samples[1], atol=0.02)


def shape_in_alpha(folder: Path) -> Path:
    picture = np.zeros((4, 6, 4), np.uint8)
    picture[1:3, 2:4, 3] = 255
    Image.fromarray(picture).save(folder / "alpha.png")
    return folder


def test_alpha_needs_a_background_and_is_put_before_it(tmp_path: Path):
    shape_in_alpha(tmp_path)
    with pytest.raises(DataError, match=r"alpha.png has transparent pixels; set the colour .*--background"):
        read(tmp_path)
    white = read(tmp_path, background="white")[0, 0]
    assert (white[1:3, 2:4] == 0).all()
    assert white.sum() == 20
    assert read(tmp_path, background="black").sum() == 0
    red = read(tmp_path, background="#ff0000", colour=True)[0]
    assert red[:, 0, 0].tolist() == [1, 0, 0]


@pytest.mark.parametrize("mode", ["P", "LA", "PA"])
def test_transparency_of_other_modes_is_seen(tmp_path: Path, mode: str):
    if mode == "P":
        Image.new("P", (4, 4), 0).save(tmp_path / "a.png", transparency=0)
    elif mode == "LA":
        Image.new("LA", (4, 4), (0, 128)).save(tmp_path / "a.png")
    else:
        Image.new("PA", (4, 4)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match="has transparent pixels"):
        read(tmp_path)
    assert read(tmp_path, background="white").min() > 0.4


def test_a_transparent_16_bit_grey_is_refused(tmp_path: Path):
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a.png", transparency=0)
    with pytest.raises(DataError, match="has a transparent grey in I;16"):
        read(tmp_path, background="white")


def test_integers_of_32_bits_need_a_range(tmp_path: Path):
    Image.fromarray((RAMP * 4000).round().astype(np.int32)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=r"is 32-bit integer grey \(I\) with values 0 to 4000.*--range 0 4000"):
        read(tmp_path)
    np.testing.assert_allclose(read(tmp_path, range=[0, 4000])[0, 0], RAMP, atol=2e-4)
    with pytest.raises(DataError, match="values 0 to 4000; they must be from 0 to 3000"):
        read(tmp_path, range=[0.0, 3000.0])


def suggested(folder: Path) -> list[float]:
    with pytest.raises(DataError, match="all pictures are within --range") as refusal:
        read(folder)
    return [float(number) for number in str(refusal.value).split("--range ")[-1].split()]


def test_the_range_that_an_error_suggests_fits_all_pictures(tmp_path: Path):
    levels = [(0.5, 1.5), (-0.25, 1.1), (0, 1), (0.1, 16777217.0)]
    for number, (low, high) in enumerate(levels):
        Image.fromarray((low + RAMP * (high - low)).astype(np.float32)).save(tmp_path / f"{number}.tif")
    limits = suggested(tmp_path)
    assert limits == [-0.25, 16777216.0]
    assert read(tmp_path, range=limits).shape == (4, 1, 4, 6)


def test_the_suggested_range_has_all_digits_and_one_kind(tmp_path: Path):
    for number, most in enumerate((10, 123_456_789)):
        Image.fromarray((RAMP * most).round().astype(np.int32)).save(tmp_path / f"{number}.tif")
    assert suggested(tmp_path) == [0, 123_456_789]
    assert read(tmp_path, range=suggested(tmp_path)).max() == 1
    Image.fromarray(RAMP.astype(np.float32)).save(tmp_path / "z.tif")
    with pytest.raises(DataError, match=r"save all pictures as one kind \(now 32-bit integer grey \(I\), float grey"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [(RAMP * 4095, r"values 0 to 4095; they must be from 0 to 1: set black and white with --range"),
     (RAMP - 0.5, "values -0.5 to 0.5; they must be from 0 to 1"),
     (np.where(RAMP > 0.9, np.nan, RAMP), "contains values that are not finite")],
)  # fmt: skip
def test_floats_outside_0_to_1_are_refused_or_have_a_range(tmp_path: Path, values: np.ndarray, message: str):
    Image.fromarray(values.astype(np.float32)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match=message):
        read(tmp_path)
    if np.isfinite(values).all():
        low, high = float(values.min()), float(values.max())
        np.testing.assert_allclose(read(tmp_path, range=[low, high])[0, 0], RAMP, atol=1e-6)


def test_depths_may_be_mixed_without_a_range_only(tmp_path: Path):
    Image.fromarray((RAMP * 255).round().astype(np.uint8)).save(tmp_path / "8.png")
    Image.fromarray((RAMP * 65535).round().astype(np.uint16)).save(tmp_path / "16.png")
    Image.fromarray(RAMP.astype(np.float32)).save(tmp_path / "f.tif")
    samples = read(tmp_path)
    np.testing.assert_allclose(samples[:, 0], np.broadcast_to(RAMP, (3, 4, 6)), atol=1 / 255)
    lines = notes_of(tmp_path)
    assert lines[0] == f"read 3 pictures of 6 x 4 pixels from {tmp_path} as grey"
    assert set(lines[1:]) == {
        "1 of 16-bit grey (I;16), values 0 to 65535, white is 65535",
        "1 of 8-bit grey (L), values 0 to 255, white is 255",
        "1 of float grey (F), values 0 to 1, white is 1",
    }
    with pytest.raises(DataError, match="needs all pictures of one kind"):
        read(tmp_path, range=[0.0, 70000.0])


def test_pictures_that_use_little_of_their_range_are_remarked(tmp_path: Path):
    Image.fromarray((RAMP > 0.5).astype(np.uint8)).save(tmp_path / "mask.png")
    assert notes_of(tmp_path)[1].endswith("white is 255; if 1 is white, use --range 0 1")
    np.testing.assert_array_equal(read(tmp_path, range=[0.0, 1.0])[0, 0], RAMP > 0.5)


@pytest.mark.parametrize("suffix", ["gif", "tif", "webp", "png"])
def test_several_frames_or_pages_are_refused(tmp_path: Path, suffix: str):
    frames = [Image.fromarray((RAMP * level).astype(np.uint8)) for level in (255, 100)]
    frames[0].save(tmp_path / f"a.{suffix}", save_all=True, append_images=frames[1:])
    with pytest.raises(DataError, match="contains 2 pictures"):
        read(tmp_path)


def test_a_mode_without_plain_colours_is_refused(tmp_path: Path):
    Image.new("LAB", (4, 4)).save(tmp_path / "a.tif")
    with pytest.raises(DataError, match="has the mode LAB"):
        read(tmp_path)


@pytest.mark.parametrize("suffix", ["png", "jpg", "tif", "gif", "bmp", "webp"])
def test_truncated_files_are_refused(tmp_path: Path, suffix: str):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(noise).save(tmp_path / f"a.{suffix}")
    content = (tmp_path / f"a.{suffix}").read_bytes()
    for length in (0, 3, 20, len(content) // 2):
        (tmp_path / f"a.{suffix}").write_bytes(content[:length])
        with pytest.raises(DataError, match=rf"a\.{suffix} is not a readable picture: \w"):
            read(tmp_path)


@pytest.mark.parametrize("side", [10_000, 20_000])
def test_decompression_bombs_are_refused_before_they_are_decoded(tmp_path: Path, side: int):
    Image.new("1", (side, side)).save(tmp_path / "bomb.png")
    with pytest.raises(DataError, match="is not a readable picture: Image size"):
        read(tmp_path)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        ((RAMP * 65535).round().astype(np.uint16), RAMP),
        ((RAMP * 255).round().astype(">u2") * 257, RAMP),
        (RAMP, RAMP),
        (RAMP.astype(np.float16), RAMP),
        (RAMP > 0.5, RAMP > 0.5),
        (np.repeat(RAMP[:, :, None], 3, axis=2), RAMP),
        (np.repeat(RAMP[None], 3, axis=0), RAMP),
        (RAMP[:, :, None], RAMP),
    ],
)
def test_arrays_of_pictures_follow_the_same_rule(tmp_path: Path, array: np.ndarray, expected: np.ndarray):
    file = tmp_path / "pictures.npy"
    np.save(file, np.stack([array] * 5))
    samples = read(file)
    assert samples.shape == (5, 1, 4, 6)
    np.testing.assert_allclose(samples[2, 0], expected, atol=0.003)
    assert read(file, colour=True).shape == (5, 3, 4, 6)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 4)), r"float64 of shape \(5, 4\); pictures"),
        (np.zeros((5, 4, 6, 4)), "blend transparent pixels with a background first"),
        (np.zeros((5, 4, 6), complex), "complex128"),
        (np.full((5, 4, 6), 300, np.int64), "is int64 grey with values 300 to 300, and it is not known which is white"),
        (np.full((5, 4, 6), 255.0), "they must be from 0 to 1"),
    ],
)
def test_arrays_that_are_no_pictures_are_refused(tmp_path: Path, array: np.ndarray, message: str):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=message):
        read(tmp_path / "a.npy")


def test_labels_of_an_array(tmp_path: Path):
    np.save(tmp_path / "x.npy", np.stack([RAMP] * 3))
    np.save(tmp_path / "y.npy", np.array([4, 2, 4]))
    lines = notes_of(tmp_path / "x.npy", conditional=True, labels=str(tmp_path / "y.npy"))
    assert lines[-1] == "2 classes: 2 1, 4 2"
