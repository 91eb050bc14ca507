"""The environment of answers: where two of them differ."""

from types import SimpleNamespace
from typing import Any

from service.environment import differences_of, environment, environment_of


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
