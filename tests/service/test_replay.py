"""Replays: digests, environments, and the members of an answer that a replay needs."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from service import examples
from service.replay import Answer, differences_of, digest_of, environment, environment_of

_ANSWER = examples.answers("POST", "/v1/sample")["fixed"]


def test_the_example_is_an_answer() -> None:
    answer = Answer.model_validate(_ANSWER)
    members = {"model": "moons", "version": 2, "seed": 0, "first_index": 0, "num_samples": 2}
    assert answer.members() == members | {"solver": "rk4", "steps": 4, "grid": "uniform", "max_nfe": 10_000}
    assert answer.digest == _ANSWER["digest"]


def test_the_digest_is_of_bytes_in_c_order() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert digest_of(array) == digest_of(np.asfortranarray(array)) == digest_of(array.reshape(6))
    assert digest_of(array) != digest_of(array.astype(np.float64))


def test_differences_name_what_differs() -> None:
    here = environment("cpu", "cpu", 2)
    assert differences_of(here, here, threads_matter=True) == []
    other = {**here, "threads": "3", "torch": "1.0"}
    assert [each.what for each in differences_of(other, here, threads_matter=True)] == ["torch", "threads"]
    assert [each.what for each in differences_of(other, here, threads_matter=False)] == ["torch"]
    [missing] = differences_of({name: here[name] for name in here if name != "machine"}, here, threads_matter=True)
    assert (missing.what, missing.answer) == ("machine", "not named")


def test_the_most_rows_of_a_call_are_part_of_the_environment_unless_rows_are_computed_by_themselves() -> None:
    def of(path: str, rows: int) -> Any:
        model: Any = SimpleNamespace(card=SimpleNamespace(compute=None), path=path, row_limit=rows)
        return environment_of({}, model)

    [found] = differences_of(of("eager", 64), of("eager", 32), threads_matter=True)
    assert (found.what, found.answer, found.here) == ("rows", "64", "32")
    assert "rows" not in of("fused", 1024)


def test_one_of_several_devices_is_as_good_as_another() -> None:
    assert environment("cuda:0", "NVIDIA H200", 1) == environment("cuda:1", "NVIDIA H200", 1)
    assert environment("cuda:0", "NVIDIA H200", 1) != environment("cuda:0", "NVIDIA A100", 1)
