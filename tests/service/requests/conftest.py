"""A loaded model for tests of requests."""

from typing import Any

import pytest

from service.registry.registry import Registry
from service.registry.version import ModelVersion
from service.settings import Settings


@pytest.fixture
def moons(settings: Settings, engine: Any) -> ModelVersion:
    registry = Registry(settings, engine)
    registry.load_all()
    return registry.entry("moons").loaded[2]
