"""The command line ``pathline``.

Exit status: 0 done; 1 the service or the network failed, a file could not be written, or samples failed; 2 the
command is not understood; 130 interrupted. Messages go to stderr, one line each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pathline.cli import commands
from pathline.cli.arguments import parser
from pathline.errors import InvalidURL, PathlineError


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: Arguments without the program's name; those of the process where left out.
    """
    try:
        arguments = parser().parse_args(argv)
        status = getattr(commands, arguments.command)(arguments)
        sys.stdout.flush()
    except SystemExit as stop:  # argparse: 0 after --help, 2 after an error
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (InvalidURL, ValueError) as error:
        return _complain(str(error), 2)
    except PathlineError as error:
        return _complain(str(error), 1)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        return _complain(f"{where}{error.strerror or error}", 1)
    return status


def _complain(message: str, status: int) -> int:
    print(f"pathline: {' '.join(message.split())}", file=sys.stderr)
    return status
