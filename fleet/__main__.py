"""The `python -m fleet` command: bulk jobs and capacity plans."""

import argparse
import sys

from fleet.bulk.command import add_export, add_sample, add_verify, guarded
from fleet.capacity.plan import add_plan


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="python -m fleet", description=__doc__)
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    for add in (add_sample, add_verify, add_export, add_plan):
        add(commands)
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run a command; return the exit code."""
    options = parser().parse_args(arguments)
    return guarded(options.run, options)


if __name__ == "__main__":
    sys.exit(main())
