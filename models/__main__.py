"""`python -m models list|check`: what a model repository holds, and whether all of it can be served."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from models.card import read_card
from models.checkpoint import CheckpointError, load
from models.repository import Repository, RepositoryError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns:
        The exit status: 0 if all is well, 1 if something cannot be served, 2 if the repository cannot be read.
    """
    parser = argparse.ArgumentParser(prog="python -m models", description="Look at a model repository.")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--models-dir",
        type=Path,
        default=Path(os.environ.get("PATHLINE_MODELS_DIR", "checkpoints")),
        help="the repository (default: $PATHLINE_MODELS_DIR, else checkpoints/)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", parents=[common], help="list models and versions from their cards")
    commands.add_parser("check", parents=[common], help="load and verify every version")
    options = parser.parse_args(arguments)
    repository = Repository(options.models_dir)
    try:
        return _list(repository) if options.command == "list" else _check(repository)
    except RepositoryError as error:
        print(error, file=sys.stderr)
        return 2


def _list(repository: Repository) -> int:
    """Print one line a version; a card that cannot be read is said so in its line."""
    rows = [("MODEL", "VERSION", "ARCHITECTURE", "DTYPE", "EVENT", "DATA", "DATASET")]
    status = 0
    for name, version, path in _versions(repository):
        try:
            card = read_card(path)
        except CheckpointError as error:
            status = 1
            rows.append((name, str(version), f"cannot be read: {error}", "", "", "", ""))
            continue
        shapes = (_shape(card.event_shape), _shape(card.data_shape))
        dataset = str(card.dataset.get("name", "-"))
        rows.append((name, str(version), card.architecture.name, card.dtype, *shapes, dataset))
    for row in rows if len(rows) > 1 else []:
        cells = [row[0].ljust(16), row[1].ljust(8), row[2].ljust(14), row[3].ljust(8), row[4].ljust(8), row[5].ljust(8)]
        print(" ".join([*cells, row[6]]).rstrip())
    if len(rows) == 1:
        print(f"{repository.root}: no models")
    return status


def _check(repository: Repository) -> int:
    """Load every version as the service would; print one line for each, and for each pickle."""
    status = 0
    for name, version, path in _versions(repository):
        try:
            checkpoint = load(path)
        except CheckpointError as error:
            status = 1
            print(f"bad  {name} {version}: {error}")
        else:
            print(f"ok   {name} {version}: {checkpoint.digest}")
    for path in repository.pickles():
        status = 1
        print(f"bad  {path}: pickles can run code and are never read; save as safetensors instead")
    return status


def _versions(repository: Repository) -> list[tuple[str, int, Path]]:
    return [
        (name, version, repository.resolve(name, version))
        for name in repository.names()
        for version in repository.versions(name)
    ]


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


if __name__ == "__main__":
    sys.exit(main())
