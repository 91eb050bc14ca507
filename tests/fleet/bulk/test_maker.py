"""Models that bulk jobs refuse."""

from pathlib import Path

import pytest

from fleet.bulk.maker import Maker
from fleet.errors import UsageError
from service.settings import Settings
from tests.service.free import picture


def test_a_model_with_free_axes_is_refused(tmp_path: Path) -> None:
    picture(tmp_path, tmp_path / "repository")
    settings = Settings(models_dir=tmp_path / "repository", device="cpu", allow_programs=True, calibration_s=0.2)
    with pytest.raises(UsageError, match=r"'picture' has free axes \(H, W\)"):
        Maker(settings, "picture", 1, 1)
