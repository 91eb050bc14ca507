"""Hidden widths at which the rows of a residual MLP do not depend on each other: `python -m studies.widths`.

For each width the network is measured as the service does when it loads one: unpadded (its `bare` form) and, if the
rows depend on each other, padded with zeros (`filled`). The output is the table of studies/widths.md.
"""

import argparse
import itertools
from collections import defaultdict
from functools import partial
from typing import cast

import torch
from torch import Tensor

from models.architectures.residual_mlp import Bare, ResidualMLP, ResidualMLPConfig
from models.forms.rows import field_rows


def main() -> None:
    """Measure the widths and print the table."""
    parser = argparse.ArgumentParser(description="Find the widths at which rows do not depend on each other.")
    parser.add_argument("--widths", type=int, nargs=2, default=(1, 300), metavar=("FIRST", "LAST"))
    parser.add_argument("--dims", type=int, nargs="+", default=(2, 5, 64), help="numbers per sample")
    parser.add_argument("--threads", type=int, nargs="+", default=(1, 2))
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "float64"), default=("float32", "float64"))
    options = parser.parse_args()
    print("| dtype | threads | dim | unpadded | padded | none |\n|---|---|---|---|---|---|")
    for dtype, threads, dim in itertools.product(options.dtypes, options.threads, options.dims):
        torch.set_num_threads(threads)
        found: dict[str, list[int]] = defaultdict(list)
        for width in range(options.widths[0], options.widths[1] + 1):
            found[_measured(width, dim, getattr(torch, dtype))].append(width)
        cells = [_shown(found, form) for form in ("unpadded", "padded", "none")]
        print(f"| {dtype} | {threads} | {dim} | {' | '.join(cells)} |", flush=True)


def _measured(width: int, dim: int, dtype: torch.dtype) -> str:
    torch.manual_seed(width)
    network = ResidualMLP(ResidualMLPConfig(dim=dim, hidden=width)).requires_grad_(False).to(dtype)
    call = field_rows(network, (dim,), dtype)
    if call.limit == 1:
        return "none"
    field = cast("partial[Tensor]", call.function).args[0]  # see `field_rows`
    assert isinstance(field, Bare)
    return f"{'padded' if field.input[0].shape[0] > width else 'unpadded'}, by {call.counts[0]}"


def _shown(found: dict[str, list[int]], form: str) -> str:
    parts = [(key.partition(", ")[2], widths) for key, widths in found.items() if key.startswith(form)]
    shown = [f"{len(widths)} {by}".strip() + _few(widths) for by, widths in sorted(parts)]
    return "; ".join(shown) or "0"


def _few(widths: list[int]) -> str:
    return f" ({', '.join(map(str, widths))})" if len(widths) <= 4 else ""


if __name__ == "__main__":
    main()
