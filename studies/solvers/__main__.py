"""`python -m studies.solvers [part ...]`: prints tables, and writes them with figures to reports/solvers/."""

from __future__ import annotations

import argparse
import os
import platform
import warnings
from pathlib import Path

import torch

from studies.solvers import overhead, precision, report, rows, ticks

PARTS = ("precision", "overhead", "rows", "ticks")


def _precision(out: Path, arguments: argparse.Namespace) -> str:
    from studies.solvers.plots import draw

    found = list(precision.curves())
    draw(found, "nfe", out / "work-precision-nfe.png")
    draw(found, "seconds", out / "work-precision-seconds.png")
    draw(found, "nfe", out / "work-precision-dopri5.png", methods=("dopri5",))
    return "## Work against precision\n\n" + report.precision(found) + "\n" + report.seconds(found)


def _overhead(out: Path, arguments: argparse.Namespace) -> str:
    many, one = (overhead.measure(samples, arguments.repetitions) for samples in (256, 1))
    return "## Time outside the network\n\n" + report.overhead(many, one)


def _rows(out: Path, arguments: argparse.Namespace) -> str:
    found, equal = [], {}
    for name, field in rows.models(arguments.models_dir):
        for samples in rows.SIZES:
            mine, equal[f"{name}, {samples}"] = rows.measure(name, field, samples)
            found += mine
    return "## Network rows under error control per sample\n\n" + report.rows(found, equal)


def _ticks(out: Path, arguments: argparse.Namespace) -> str:
    return "## Ticks\n\n" + report.ticks(ticks.measure(arguments.repetitions))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.solvers", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)} (default: all)")
    parser.add_argument("--repetitions", type=int, default=7, help="repetitions of each timing; medians are shown")
    parser.add_argument("--models-dir", type=Path, default=Path("checkpoints"), help="repository of trained models")
    parser.add_argument("--out", type=Path, default=Path("reports/solvers"))
    arguments = parser.parse_args()
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown part {sorted(unknown)[0]!r}; use {', '.join(PARTS)}")
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", module="torchode|torch.jit")
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = {"precision": _precision, "overhead": _overhead, "rows": _rows, "ticks": _ticks}
    load = os.getloadavg()[0]
    machine = f"{platform.machine()}, {os.cpu_count()} cores, load {load:.1f} at the start"
    texts = [f"Python {platform.python_version()}, torch {torch.__version__}, one thread, its CPU time; {machine}.\n"]
    print(texts[0])
    for part in arguments.parts or PARTS:
        texts.append(run[part](arguments.out, arguments))
        print(texts[-1], flush=True)
    (arguments.out / "report.md").write_text("\n".join(texts))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
