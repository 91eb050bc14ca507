"""Device and precision of a run."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor, nn

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


@dataclass(frozen=True)
class Group:
    """The processes of a run; only this one unless torchrun is used.

    All random numbers are functions of the seed and the step, so every process draws the whole batch and takes its
    rows. The gradients of the shares add up to that of the batch: N processes get the result of one, up to the order of
    sums.

    Attributes:
        rank: number of this process; 0 is the one that writes.
        size: number of processes.
    """

    rank: int = 0
    size: int = 1

    @classmethod
    def join(cls, device: torch.device) -> "Group":
        """Join the other processes, if torchrun's environment says that there are any.

        Raises:
            UsageError: the environment does not say where to meet them.
        """
        size = int(os.environ.get("WORLD_SIZE", "1"))
        if size == 1:
            return cls()
        missing = [name for name in ("RANK", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise UsageError(
                f"WORLD_SIZE is {size}, but not set: {', '.join(missing)}; use torchrun to start several processes, or "
                "unset WORLD_SIZE"
            )
        if not torch.distributed.is_initialized():
            # The first optimizer imports torch._dynamo. If a group exists by then, its threads outlive `leave`, and one
            # that meets the interpreter's end aborts the process after a run that went well.
            torch.optim.Adam([torch.zeros(1)])
            torch.distributed.init_process_group("nccl" if device.type == "cuda" else "gloo")
        return cls(torch.distributed.get_rank(), size)

    def leave(self) -> None:
        """Leave the group at the end of a run."""
        if self.size > 1:
            torch.distributed.destroy_process_group()

    def share(self, rows: int) -> slice:
        """Return this process's rows of a batch; it may have none if there are fewer rows than processes."""
        return slice(rows * self.rank // self.size, rows * (self.rank + 1) // self.size)

    def sum(self, parameters: Iterable[nn.Parameter], loss: Tensor) -> Tensor:
        """Replace each gradient with its sum over the processes, and return the sum of the loss, in one message."""
        if self.size == 1:
            return loss
        owners = list(parameters)
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in owners]
        flat = torch.cat([*(part.reshape(-1) for part in parts), loss.detach().reshape(1).to(parts[0].dtype)])
        torch.distributed.all_reduce(flat)
        begin = 0
        for owner in owners:
            owner.grad = flat[begin : begin + owner.numel()].view_as(owner).clone()
            begin += owner.numel()
        return flat[-1]

    def any(self, flag: bool, device: torch.device) -> bool:
        """Return whether the flag is set in any process."""
        if self.size == 1:
            return flag
        vote = torch.tensor(float(flag), device=device)
        torch.distributed.all_reduce(vote)
        return bool(vote > 0)
