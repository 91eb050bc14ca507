"""The `python -m fleet` command: bulk jobs."""

import argparse
import sys

from fleet.bulk.command import add_export, add_sample, add_verify, guarded


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m fleet", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_sample, add_verify, add_export):
        add(commands)
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit code."""
    options = parser().parse_args(arguments)
    return guarded(options.run, options)


if __name__ == "__main__":
    sys.exit(main())
