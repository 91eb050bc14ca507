import pytest
import torch

from training.config import Recipe
from training.devices import choose_device, mixes
from training.errors import UsageError


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """Pretend to have this number of GPUs, with or without bfloat16."""

    def pretend(count: int, bfloat16: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: bfloat16)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla P100")

    return pretend


def test_cuda_where_there_is_none(gpus):
    gpus(0)
    with pytest.raises(UsageError, match="--device is 'cuda'"):
        choose_device("cuda")
    assert choose_device("auto").type == "cpu"


def test_each_process_of_a_torchrun_takes_a_gpu_of_its_own(gpus, monkeypatch: pytest.MonkeyPatch):
    gpus(2)
    assert choose_device("cpu").type == "cpu"
    assert choose_device("auto") == torch.device("cuda", 0)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert choose_device("cuda") == torch.device("cuda", 1)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(UsageError, match=r"process 3 on this machine, which has 2 GPUs.*--nproc-per-node 2"):
        choose_device("auto")


@pytest.mark.parametrize(
    ("precision", "device", "bfloat16", "mixed"),
    [
        ("float32", "cuda", True, False),
        ("bfloat16", "cuda", True, True),
        ("auto", "cuda", True, True),
        ("auto", "cuda", False, False),
        ("auto", "cpu", False, False),
        ("bfloat16", "cpu", False, True),
    ],
)
def test_which_runs_are_mixed(recipe: Recipe, gpus, precision: str, device: str, bfloat16: bool, mixed: bool):
    gpus(1, bfloat16)
    assert mixes(recipe.model_copy(update={"precision": precision}), torch.device(device)) is mixed


def test_a_gpu_without_bfloat16_is_refused(recipe: Recipe, gpus):
    gpus(1, bfloat16=False)
    with pytest.raises(UsageError, match="precision is 'bfloat16'; Tesla P100 does not support it; use 'float32'"):
        mixes(recipe.model_copy(update={"precision": "bfloat16"}), torch.device("cuda", 0))
