"""The command `python -m studies`: the paper's experiments, the study of cheap flows, and all benchmarks."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from training.errors import UsageError, reported

_BENCHMARKS = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))


def _add_experiments(parser: argparse.ArgumentParser, out: Path) -> None:
    parser.add_argument("--quick", action="store_true", help="run all experiments at reduced size, in minutes")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="experiment to run; can be repeated"
    )
    parser.add_argument(
        "--out", type=Path, default=out, metavar="DIR", help="folder for results (default: %(default)s)"
    )
    parser.add_argument("--force", action="store_true", help="repeat earlier measurements; models are kept")
    parser.add_argument("--measured", action="store_true", help="measure nothing; report earlier measurements")
    parser.add_argument("--threads", type=int, metavar="N", help="CPU threads (default: torch's choice)")
    parser.add_argument(
        "--note", default="", metavar="TEXT", help="sentence for the report, such as the machine's load"
    )
    data_dir = os.environ.get("PATHLINE_DATA_DIR", "").strip() or None
    parser.add_argument("--data-dir", type=Path, default=data_dir, metavar="DIR", help="data files (MNIST: IDX files)")
    models_dir = os.environ.get("PATHLINE_MODELS_DIR", "").strip() or "checkpoints"
    parser.add_argument(
        "--models-dir",
        type=Path,
        default=models_dir,
        metavar="DIR",
        help="repository of models to reuse (now: %(default)s)",
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies", description="Measure, and write reports.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    paper = commands.add_parser("paper", help="measure every result of the paper and write a report")
    _add_experiments(paper, Path("reports/paper"))
    flows = commands.add_parser("flows", help="measure what makes a flow cheap to solve and write a report")
    _add_experiments(flows, Path("reports/flows"))
    commands.add_parser("bench", help=f"run all benchmarks: {', '.join(_BENCHMARKS)} (one: python -m studies.NAME)")
    return parser


def _experiments(arguments: argparse.Namespace) -> int:
    if arguments.measured and (arguments.force or arguments.only):
        raise UsageError("--measured measures nothing; leave --force and --only out")
    if arguments.threads is not None and arguments.threads < 1:
        raise UsageError(f"--threads is {arguments.threads}; it must be 1 or more")
    from studies.experiments.run import Options, run_experiments, sizes_of  # torch is slow to import

    run_experiments(
        Options(
            out=arguments.out,
            only=arguments.only,
            sizes=sizes_of(arguments.quick),
            models_dir=arguments.models_dir,
            data_dir=arguments.data_dir,
            force=arguments.force,
            threads=arguments.threads,
            conditions=arguments.note,
            study=arguments.command == "flows",
            measured=arguments.measured,
        )
    )
    return 0


def _bench() -> int:
    failed = []
    for name in _BENCHMARKS:
        print(f"== studies.{name}", flush=True)
        if subprocess.run([sys.executable, "-m", f"studies.{name}"], check=False).returncode:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def main(argv: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 1 (failed), 2 (wrong usage), 130 or 143 (stopped)."""
    # See training/__main__.py: torch reads it when it is imported.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = _parser().parse_args(argv)
    run = _bench if arguments.command == "bench" else lambda: _experiments(arguments)
    return reported("studies", "training,benchmarks", run)


if __name__ == "__main__":
    sys.exit(main())
