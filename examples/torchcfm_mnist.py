"""Train a UNet on MNIST with TorchCFM, to import into Pathline and serve.

TorchCFM (https://github.com/atong01/conditional-flow-matching, MIT) provides the coupling of noise and digits
(minibatch optimal transport) and, with `--network torchcfm`, the UNet too. That UNet is not one of Pathline's, so it is
imported as a `torch.export` program. With `--network pathline` the network is Pathline's own UNet, imported from a
state dict with raw and averaged weights. docs/import.md shows both.

TorchCFM depends on PyTorch Lightning and more, but this example needs only:

    .venv/bin/pip install --no-deps torchcfm pot
    .venv/bin/python examples/torchcfm_mnist.py --data-dir DIR
"""

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from tqdm import tqdm

from models.architectures.unet import UNet, UNetConfig
from training.errors import DataError
from training.mnist import load

SIDE = 14  # of a picture: digits at half size, so that a CPU needs only minutes
NETWORKS = ("torchcfm", "pathline")
CONFIG = UNetConfig(shape=(1, SIDE, SIDE), hidden=32, levels=2)
"""Config of Pathline's own UNet, as `python -m models import --config` takes it."""


Velocity = Callable[[Tensor, Tensor], Tensor]


class Matcher(Protocol):
    """The part of a TorchCFM matcher that is used here."""

    def sample_location_and_conditional_flow(self, x0: Tensor, x1: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return times (rows,), states and velocities (rows, 1, h, w) on paths from noise x0 to digits x1."""
        ...


def torchcfm_matcher() -> Matcher:
    """TorchCFM's straight paths between noise and digits paired by optimal transport."""
    module = importlib.import_module("torchcfm.conditional_flow_matching")
    return module.ExactOptimalTransportConditionalFlowMatcher(sigma=0.0)


def torchcfm_unet() -> nn.Module:
    """TorchCFM's UNet; its arguments are (t, x)."""
    module = importlib.import_module("torchcfm.models.unet.unet")
    return module.UNetModelWrapper(
        dim=(1, SIDE, SIDE), num_channels=32, num_res_blocks=1, channel_mult=(1, 2), attention_resolutions="2"
    )


def digits(data_dir: Path | None) -> Tensor:
    """Return the 60,000 training digits (n, 1, 14, 14) from -1 to 1, each pixel the mean of four.

    Raises:
        DataError: MNIST is missing or damaged.
    """
    pixels = load(data_dir)[0].reshape(-1, 1, SIDE, 2, SIDE, 2).mean(axis=(3, 5), dtype=np.float32)
    return torch.from_numpy(pixels / 127.5 - 1)


def train(
    velocity: Velocity, network: nn.Module, matcher: Matcher, data: Tensor, steps: int, rows: int = 64
) -> AveragedModel:
    """Fit a network to the velocities of a matcher; return its weights averaged over the last steps.

    Args:
        velocity: evaluates the network: states (rows, 1, h, w), times (rows,) -> velocities.
        network: the network to train.
        matcher: a matcher from TorchCFM.
        data: pictures (n, 1, h, w).
        steps: steps of Adam; the learning rate falls to zero along a cosine.
        rows: pictures per step.
    """
    averaged = AveragedModel(network, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.Adam(network.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps, pct_start=0.1)
    bar = tqdm(range(steps), mininterval=1.0)
    for _ in bar:
        x1 = data[torch.randint(len(data), (rows,))]
        t, x, u = matcher.sample_location_and_conditional_flow(torch.randn_like(x1), x1)
        loss = (velocity(x, t) - u).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        averaged.update_parameters(network)
        bar.set_postfix(loss=f"{loss.item():.3f}", refresh=False)
    return averaged


def export(network: nn.Module, path: Path) -> None:
    """Save a network f(t, x) as a program with a free number of rows."""
    rows = torch.export.Dim("rows", min=1, max=8192)
    example = (torch.rand(4), torch.randn(4, 1, SIDE, SIDE))
    torch.export.save(torch.export.export(network.eval(), example, dynamic_shapes=({0: rows}, {0: rows})), path)


def main(arguments: list[str] | None = None) -> int:
    """Train, save, and print how to import the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "--network", choices=NETWORKS, default="torchcfm", help="source of the UNet (default: %(default)s)"
    )
    parser.add_argument("--data-dir", type=Path, default=os.environ.get("PATHLINE_DATA_DIR") or None, metavar="DIR")
    parser.add_argument("--out", type=Path, default=Path("runs/torchcfm"), metavar="DIR", help="(default: %(default)s)")
    parser.add_argument("--steps", type=int, default=1500, metavar="N", help="training steps (default: %(default)s)")
    parser.add_argument("--threads", type=int, metavar="N", help="torch threads (default: torch's choice)")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        data = digits(options.data_dir)
        print(run(options.network, data, options.steps, options.out))
    except DataError as error:
        print(f"torchcfm_mnist: {error}", file=sys.stderr)
        return 1
    except ModuleNotFoundError as error:
        print(f"torchcfm_mnist: {error}; pip install --no-deps torchcfm pot", file=sys.stderr)
        return 1
    return 0


def run(kind: str, data: Tensor, steps: int, out: Path) -> str:
    """Train one of `NETWORKS`, save it below a folder, and return the command that imports it."""
    torch.manual_seed(0)
    matcher = torchcfm_matcher()
    out.mkdir(parents=True, exist_ok=True)
    take = ".venv/bin/python -m models import"
    common = "--name torchcfm --noise-at 0 --time-scale 1 --sign 1 --clip -1 1 --check"
    if kind == "torchcfm":
        network = torchcfm_unet()
        averaged = train(lambda x, t: network(t, x), network, matcher, data, steps)
        export(averaged.module, out / "unet.pt2")
        shape = f"1x{SIDE}x{SIDE}"
        return f"PATHLINE_ALLOW_PROGRAMS=true {take} {out / 'unet.pt2'} --program --event-shape {shape} {common}"
    network = UNet(CONFIG)
    averaged = train(network, network, matcher, data, steps)
    torch.save({"model": network.state_dict(), "ema": averaged.state_dict()}, out / "weights.pt")
    config = CONFIG.model_dump_json(exclude_defaults=True)
    return f"{take} {out / 'weights.pt'} --architecture unet --config '{config}' --which ema {common}"


if __name__ == "__main__":
    raise SystemExit(main())
