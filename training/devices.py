"""Device and precision of a run."""

import os

import torch

from training.config import Recipe
from training.errors import UsageError


def choose_device(name: str) -> torch.device:
    """Return the device for `auto`, `cpu` or `cuda`; under torchrun, each process gets its own GPU.

    Raises:
        UsageError: cuda was requested but is not available, or there are fewer GPUs than processes.
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
    """Return whether the network's products are computed in bfloat16 (weights, sums and Adam stay float32).

    Raises:
        UsageError: the recipe requires bfloat16 and the GPU does not support it.
    """
    if recipe.precision == "float32":
        return False
    if device.type != "cuda":
        return recipe.precision == "bfloat16"
    if torch.cuda.is_bf16_supported(including_emulation=False):
        return True
    if recipe.precision == "bfloat16":
        raise UsageError(
            f"precision is 'bfloat16'; {torch.cuda.get_device_name(device)} does not support it; use 'float32', or "
            "'auto', which uses bfloat16 if the GPU supports it"
        )
    return False
