"""Device and precision of a run."""

import os

import torch

from training.config import Recipe
from training.errors import UsageError


def choose_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`; of several GPUs, that of this process of a torchrun.

    Raises:
        UsageError: cuda was asked for and there is none, or fewer GPUs than processes.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device is 'cuda'; torch finds no CUDA device here, use cpu or auto")
    if name == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    place, gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if place >= gpus:
        raise UsageError(
            f"torchrun started process {place + 1} on this machine, which has {gpus} GPUs; each process needs its "
            f"own: --nproc-per-node {gpus}, or --device cpu"
        )
    return torch.device("cuda", place)


def mixes(recipe: Recipe, device: torch.device) -> bool:
    """Whether the network's products are computed in bfloat16 (weights, sums and Adam stay float32).

    Raises:
        UsageError: the recipe insists on bfloat16 and the GPU does not have it.
    """
    if recipe.precision == "float32":
        return False
    if device.type != "cuda":
        return recipe.precision == "bfloat16"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return True
    if recipe.precision == "bfloat16":
        raise UsageError(
            f"precision is 'bfloat16'; {torch.cuda.get_device_name(device)} does not compute in it: use 'float32', or "
            "'auto', which takes bfloat16 where the GPU has it"
        )
    return False
