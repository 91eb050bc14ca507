"""The command line `python -m models list|check|measure|import`: inspect, measure and import models."""

import argparse
import math
import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from tqdm import tqdm

from models.checkpoint.bound import BoundFileError
from models.checkpoint.card import CheckpointError, read_card
from models.checkpoint.loading import Checkpoint, load
from models.importing.command import add_arguments, run
from models.messages import printable
from models.repository import FILE, Repository, RepositoryError, UnknownModel
from selection.error import NoErrors
from selection.frontier import read_frontier

_LONGEST_PATH = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 if all is well, 1 if something cannot be used or was refused, 2 if the repository cannot be
        read.
    """
    parser = argparse.ArgumentParser(
        prog="python -m models", description="Inspect a model repository, measure a model, or import weights."
    )
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--models-dir",
        type=Path,
        default=Path(os.environ.get("PATHLINE_MODELS_DIR", "").strip() or "checkpoints"),
        help="the repository (default: $PATHLINE_MODELS_DIR, else checkpoints/)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", parents=[common], help="list models and versions from their cards")
    commands.add_parser("check", parents=[common], help="load and verify every version")
    _add_measure(commands.add_parser("measure", help="measure the cost and error of solvers on a model"))
    add_arguments(commands.add_parser("import", parents=[common], help="turn other people's weights into a model"))
    options = parser.parse_args(arguments)
    if options.command == "measure":
        return _measure(options)
    repository = Repository(options.models_dir)
    try:
        if options.command == "import":
            return run(options)
        return _list(repository) if options.command == "list" else _check(repository)
    except CheckpointError as error:
        print(f"refused: {error}", file=sys.stderr)
        return 1
    except RepositoryError as error:
        print(error, file=sys.stderr)
        return 2


def _add_measure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("path", type=Path, metavar="PATH", help="folder of a version, e.g. checkpoints/moons/1")
    add(
        "--guidance",
        action="append",
        type=float,
        metavar="G",
        help="conditional models: strength of guidance; can be repeated (default: 1)",
    )
    add(
        "--shape",
        action="append",
        type=_size,
        default=[],
        metavar="T=N",
        help="size of a free axis of the samples; can be repeated",
    )
    add(
        "--condition",
        type=Path,
        metavar="FILE.npz",
        help="examples of conditions: an array (examples, ...) for each name; needed for conditions by name",
    )
    add(
        "--seconds",
        type=float,
        default=300.0,
        metavar="S",
        help="limit on the wall-clock time; cheap solvers come first (default: 300)",
    )


def _measure(options: argparse.Namespace) -> int:
    from selection import measure

    if not options.seconds > 0 or not all(map(math.isfinite, options.guidance or ())):
        print("refused: --seconds must be above 0, and --guidance a finite number", file=sys.stderr)
        return 2
    with tqdm(bar_format="{desc} [{elapsed}]", disable=not sys.stderr.isatty(), leave=False) as bar:
        try:
            report = measure.run(
                options.path,
                options.condition,
                guidances=options.guidance or [1.0],
                seconds=options.seconds,
                sizes=dict(options.shape),
                progress=bar.set_description_str,
            )
        except (CheckpointError, NoErrors) as error:
            bar.close()
            print(f"refused: {error}", file=sys.stderr)
            return 1
    print(*report, sep="\n")
    return 0


def _size(text: str) -> tuple[str, int]:
    axis, _, size = text.partition("=")
    if not (axis and size.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not the size of an axis; write it as T=344")
    return axis, int(size)


def _list(repository: Repository) -> int:
    """Print one line for each version; the line of a card that cannot be read says so."""
    rows = [("MODEL", "VERSION", "ARCHITECTURE", "DTYPE", "EVENT", "DATA", "DATASET")]
    status = 0
    versions, closed = _versions(repository)
    for name, version in versions:
        try:
            card = read_card(repository.folder(name, version))
        except (CheckpointError, RepositoryError, LookupError) as error:
            status = 1
            rows.append((name, str(version), f"cannot be read: {error}", "", "", "", ""))
            continue
        event, data = ("x".join(map(str, shape)) for shape in (card.event_shape, card.data_shape))
        dataset = str(card.dataset.get("name", "-"))
        rows.append((name, str(version), card.architecture.name, card.dtype, event, data, dataset))
    if len(rows) == 1:
        lines = [f"{repository.root}: no models"]
    else:
        lines = [" ".join(map(str.ljust, row, (16, 8, 14, 8, 8, 8, 0))).rstrip() for row in rows]
    odd, notes = _passed_over(repository, ())
    print(*lines, *closed, *odd, *notes, sep="\n")
    return 1 if closed else status


def _check(repository: Repository) -> int:
    """Load every version as the service would; print a line for each, and for each path that is passed over."""
    versions, closed = _versions(repository)
    status = 0
    for name, version in versions:
        try:
            checkpoint = load(repository.folder(name, version))
        except (CheckpointError, RepositoryError, LookupError) as error:
            status = 1
            print(f"bad  {name} {version}: {error}")
        else:
            print(f"ok   {name} {version}: {checkpoint.digest}")
            for fault in _unusable(checkpoint):
                status = 1
                print(f"bad  {name} {version}: {fault}")
    pickles = repository.pickles()
    odd, notes = _passed_over(repository, pickles)
    advice = "pickles can run code and are never read; save as safetensors instead"
    faults = [*closed, *odd, *(f"{printable(path, _LONGEST_PATH)}: {advice}" for path in pickles)]
    for line in [*(f"bad  {fault}" for fault in faults), *(f"note {note}" for note in notes)]:
        print(line)
    if not versions and not faults and not notes:
        print(f"{repository.root}: the repository is empty: no models")
    return 1 if faults else status


def _unusable(checkpoint: Checkpoint) -> list[str]:
    """Return why plans and frontier of a checkpoint cannot be used; it is served without them."""
    faults = [checkpoint.plans_fault] if checkpoint.plans_fault else []
    try:
        read_frontier(checkpoint.path, checkpoint.card)
    except BoundFileError as error:
        faults.append(str(error))
    return faults


def _versions(repository: Repository) -> tuple[list[tuple[str, int]], list[str]]:
    """Return every version of every model, and a line for each model folder that cannot be read."""
    versions, closed = [], []
    for name in repository.names():
        try:
            versions += [(name, version) for version in repository.versions(name)]
        except RepositoryError as error:
            closed.append(str(error))
        except UnknownModel:  # removed since the names were read
            continue
    return versions, closed


def _passed_over(repository: Repository, pickles: Collection[Path]) -> tuple[list[str], list[str]]:
    """Return lines for paths that may be meant as models, and lines for files; `others` are reported elsewhere."""
    faults, notes = list[str](), list[str]()
    for path, reason in repository.passed_over():
        if path not in pickles:
            (notes if reason == FILE else faults).append(f"{printable(path, _LONGEST_PATH)}: {reason}")
    return faults, notes


if __name__ == "__main__":
    sys.exit(main())
