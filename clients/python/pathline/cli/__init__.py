"""The command line ``pathline``.

Exit status: 0 done; 1 done, but samples did not reach the end, a replay gave different bits, or requests of a
bench failed; 2 invalid command or environment; 3 no valid response received (nothing listens, a wrong URL, a broken
connection, an older service); 4 the service refused or failed; 5 the output could not be written; 130 interrupted.
Messages go to stderr, one line each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from pathline._calls import SERVICE_TIMEOUT_S
from pathline._response import printable
from pathline.cli import commands, server
from pathline.cli.arguments import flags_in, parse, parser
from pathline.cli.output import STDOUT
from pathline.errors import (
    APIError,
    DeadlineExceeded,
    PathlineError,
    ProtocolError,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status.

    Args:
        argv: Arguments without the program's name; by default those of the process.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in server.COMMANDS:
        return server.run(words)
    arguments = None
    try:
        arguments = parse(words)
        if arguments.command is None:
            parser().print_help()
            return 0
        status = getattr(commands, arguments.command)(arguments)
    except SystemExit as stop:  # argparse: 0 after --help, 2 after an error
        return int(stop.code or 0)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        _drop_output()
        return 0
    except PathlineError as error:
        answered = isinstance(error, APIError) and error.slug != "no-such-route"
        status = 2 if isinstance(error, ValueError) else 4 if answered else 3  # 2: nothing was sent
        return _complain(flags_in(f"{error}{_advice(error, getattr(arguments, 'timeout_s', None))}"), status)
    except (ValueError, ImportError) as error:  # a .png needs matplotlib
        return _complain(flags_in(str(error)), 2)
    except OSError as error:
        if error.filename is None:  # not about an output file, which would be named
            return _complain(f"{error.strerror or error}; no valid response received", 3)
        if error.filename == STDOUT:
            _drop_output()
        return _complain(f"{error.filename}: {error.strerror or error}", 5)
    return status


def _drop_output() -> None:
    """Discard unprinted output, so that the interpreter does not try to print it again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _advice(error: PathlineError, timeout_s: float | None) -> str:
    """Return advice in terms of the command's options, if the message of the service has none."""
    if isinstance(error, APIError) and error.status == 401:
        return "; set PATHLINE_API_KEY or give --api-key"
    if isinstance(error, APIError) and error.slug == "no-such-route":
        return "; check the URL (--url), or is the service older than this command?"
    if isinstance(error, ProtocolError) and error.cut_off:
        return "; nothing was written, run the command again"
    if isinstance(error, DeadlineExceeded):
        limit = f"{SERVICE_TIMEOUT_S:g} s by default" if timeout_s is None else f"{timeout_s:g} s"
        return f"; the limit (--timeout) was {limit}"
    return ""


def _complain(message: str, status: int) -> int:
    print(f"pathline: {printable(' '.join(message.split()))}", file=sys.stderr)
    return status
