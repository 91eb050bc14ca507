"""Fields of requests as other programs see them, and the file of the SDK that is written from them."""

from typing import Any

import pytest

from service.sdk_fields import SDK, sdk_text


def test_the_fields_of_the_sdk_are_those_of_the_schemas() -> None:
    assert SDK.read_text() == sdk_text(), "run python -m service.sdk_fields"


@pytest.mark.anyio
async def test_names_of_other_libraries_are_told_what_there_is(running: Any) -> None:
    for name, field in (("num_inference_steps", "steps"), ("temperature", "noise_scale"), ("sampler", "solver")):
        answer = await running.post(**{name: 1})
        assert answer.json()["detail"] == f"unknown field {name!r}; did you mean {field!r}?"


@pytest.mark.anyio
async def test_too_many_samples_are_told_how_to_get_them(running: Any) -> None:
    detail = (await running.post(num_samples=10**9)).json()["detail"]
    assert all(way in detail for way in ("first_index", "iter_samples", "bulk"))
