import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from training.data_config import ImagesData
from training.errors import DataError
from training.user_data.data import content_hash
from training.user_data.pictures import picture_files, read_images


def images(path: Path, conditional: bool = True) -> ImagesData:
    return ImagesData(name="images", path=str(path), conditional=conditional)


def clutter(folder: Path) -> None:
    """Add files that macOS, Windows, Jupyter, storage servers and people leave in a folder of pictures."""
    (folder / ".ipynb_checkpoints").mkdir()
    Image.new("L", (4, 8)).save(folder / ".ipynb_checkpoints" / "0-checkpoint.png")
    (folder / "__MACOSX" / "left").mkdir(parents=True)
    (folder / "__MACOSX" / "left" / "._0.png").write_bytes(b"\0\5\x16\7")
    (folder / "@eaDir").mkdir()
    Image.new("L", (2, 2)).save(folder / "@eaDir" / "thumb.png")
    (folder / "left" / "._0.png").write_bytes(b"\0\5\x16\7")
    (folder / "left" / ".DS_Store").touch()
    for name in ("Thumbs.db", "desktop.ini", "README.txt", "labels.csv", "~$0.png"):
        (folder / "right" / name).write_text("x")
    (folder / "right" / "gone.png").symlink_to(folder / "nowhere.png")


def test_hidden_and_foreign_files_are_left_out_and_counted(pictures: Path):
    before, digest = read_images(images(pictures)), content_hash(images(pictures))
    clutter(pictures)
    read = read_images(images(pictures))
    np.testing.assert_array_equal(read.samples, before.samples)
    assert read.condition == before.condition
    assert content_hash(images(pictures)) == digest
    assert [line for line in read.notes if line.startswith("skipped")] == [
        "skipped 3 hidden (.DS_Store, ._0.png, .ipynb_checkpoints), 2 of other kinds (.csv, .txt), "
        "5 of the system (@eaDir, Thumbs.db, __MACOSX, ...), 1 that are broken links or not files (gone.png)"
    ]


def test_a_folder_of_nothing_else_is_an_error_that_says_what_is_there(tmp_path: Path):
    for name in ("left", "right"):
        (tmp_path / name).mkdir()
    clutter(tmp_path)
    with pytest.raises(DataError, match=r"has no pictures; looked for .*; skipped 3 hidden"):
        picture_files(tmp_path)


def test_the_name_of_the_folder_itself_does_not_matter(pictures: Path):
    hidden = pictures.rename(pictures.parent / ".cache")
    assert len(picture_files(hidden)[0]) == 12


def test_linked_folders_are_entered_once_and_loops_end(pictures: Path, tmp_path: Path):
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "a").symlink_to(pictures / "left")
    (tmp_path / "linked" / "back").symlink_to(tmp_path / "linked")
    files, _ = picture_files(tmp_path / "linked")
    assert [file.name for file in files] == [f"{number}.png" for number in range(6)]


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path):
    with pytest.raises(DataError, match=r"data folder .*none cannot be read: No such file"):
        picture_files(tmp_path / "none")


def test_a_folder_above_train_and_val_says_what_it_took_as_a_class(pictures: Path, tmp_path: Path):
    above = tmp_path / "above"
    for part in ("train", "val"):
        shutil.copytree(pictures, above / part)
    read = read_images(images(above))
    assert read.condition is not None
    assert read.condition.names == ("train", "val")
    assert read.notes[-2:] == (
        f"classes are the folders directly in {above}; those within them are not: train, val contain left, right. If "
        f"these are the classes, use --data {above / 'train'}",
        "2 classes: train 12, val 12",
    )
    assert "directly in" not in "".join(read_images(images(pictures)).notes)
