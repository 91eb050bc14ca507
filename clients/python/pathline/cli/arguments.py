"""Arguments of the command line."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pathline._calls import DEFAULT_URL, VERSION
from pathline._compare import CANDIDATES, REFERENCE
from pathline._request import nearest
from pathline.cli.output import FORMATS
from pathline.cli.server import COMMANDS

_NAMES = (
    *("first_index", "grid", "start", "error_control", "controller", "first_step", "max_step", "max_nfe"),
    *("noise_scale", "trace", "on_timeout", "priority"),
)
_MODEL = ("version", "guidance")
_HELP = {
    "first_index": "index of the first sample in the seed's stream",
    "grid": "time grid of fixed steps: uniform, shift, sway, power, logit_normal, karras",
    "start": "start of a multistep method: ramp or rk",
    "error_control": "sample: own steps for each sample; batch: one step size for the whole request",
    "controller": "step-size controller: paper, i or pi",
    "first_step": "first step of error control",
    "max_step": "longest step of error control, in units of t",
    "max_nfe": "maximum network evaluations per sample",
    "noise_scale": "factor of the starting noise, its temperature",
    "trace": "how much detail to report about the steps",
    "on_timeout": "what to do when the time limit passes",
    "priority": "bulk yields to interactive requests",
    "condition": "label, JSON such as [0.5, 1], or, for each of several, NAME=FILE.npy or NAME=JSON",
    "negative": "condition that replaces a null in guidance, in the same forms",
    "guidance": "strength of classifier-free guidance, or JSON with terms, interval, projection and rescale",
    "shape": "size of a free axis of the samples, such as T=344; can be repeated",
}
_CHOICES = {
    "trace": ("none", "summary", "full"),
    "error_control": ("sample", "batch"),
    "on_timeout": ("error", "partial"),
    "priority": ("interactive", "bulk"),
}


_FLAGS = {"version": "--model-version", "bare_steps": "--steps", "decode": "--no-decode"}
"""Options named differently from the attributes that they set."""

_EXIT = (
    "Exit status: 0 done; 1 done, but samples did not reach the end, a replay gave different bits, or requests of "
    "bench failed; 2 invalid command or "
    "environment; 3 no valid response received; 4 the service refused or failed; 5 the output could not be written."
)


_EPILOG = (
    "Where the server is installed, too: "
    + "; ".join(f"{name}: {text}" for name, (_, _, text) in COMMANDS.items())
    + f". {_EXIT}"
)


def _condition(text: str) -> tuple[str, Any]:
    """Return the name of a condition, empty if it has none, and its value."""
    named = re.fullmatch(r"([A-Za-z]\w*)=(.*)", text, re.DOTALL)
    if named is None:
        return "", _value(text)
    name, value = named.groups()
    if not value.endswith(".npy"):
        return name, _value(value)
    try:
        return name, np.load(value, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise argparse.ArgumentTypeError(f"{value!r} cannot be read: {error}") from None


def _size(text: str) -> tuple[str, int]:
    """Return the name and the size of an axis."""
    axis, _, size = text.partition("=")
    if not (axis and size.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not the size of an axis; write it as T=344")
    return axis, int(size)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text  # a label that is a word


def _guidance(text: str) -> Any:
    found = _value(text)
    if isinstance(found, dict) or (isinstance(found, (int, float)) and not isinstance(found, bool)):
        return found if isinstance(found, dict) else float(found)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor a JSON object")


_KINDS = {"first_index": int, "max_nfe": int, "condition": _condition, "negative": _condition, "guidance": _guidance}
_KINDS |= dict.fromkeys(("first_step", "max_step", "noise_scale"), float)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the arguments of a command; by default those of the process."""
    top = parser()
    arguments, unknown = top.parse_known_args(argv)
    if unknown:
        prog = top.prog if arguments.command is None else f"{top.prog} {arguments.command}"
        top.exit(2, f"{prog}: unknown argument {unknown[0]}{_meant(unknown[0], arguments)}; see {prog} --help\n")
    return arguments


def _meant(unknown: str, arguments: argparse.Namespace) -> str:
    """Return a hint at the option of the command that an unknown one probably means; empty if none is close."""
    flags = {name: _FLAGS.get(name, "--" + name.replace("_", "-")) for name in vars(arguments) if name != "command"}
    written = {flag[2:].replace("-", "_"): flag for flag in flags.values()} | flags
    near = nearest(unknown.partition("=")[0].lstrip("-").replace("-", "_"), list(written))
    return f"; did you mean {written[near]}?" if near and unknown.startswith("-") else ""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    # These may come before or after the command; omitting one after it must not undo one given before it.
    common = _common(argparse.SUPPRESS)
    top = _Parser(
        prog="pathline", description="Samples from a Pathline service.", epilog=_EPILOG, parents=[_common(None)]
    )
    top.add_argument("--version", action="version", version=f"pathline {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    sample = commands.add_parser(
        "sample", parents=[common], help="draw samples", epilog="Without -o, a summary is printed."
    )
    _add_solving(sample, 256)
    sample.add_argument("-o", "--output", type=_output, metavar="FILE", help=f"where to write: {', '.join(FORMATS)}")
    sample.add_argument(
        "--batch", type=_count, help="samples per request (default: a tenth of all, from 2,000 to 10,000)"
    )

    replay = commands.add_parser(
        "replay", parents=[common], help="reproduce the samples of an earlier response, bit for bit"
    )
    replay.add_argument(
        "file",
        metavar="FILE",
        help="a .json or .npz file written by `pathline sample -o`, or a response of the service",
    )
    replay.add_argument("--force", action="store_true", help="sample even if the same bits cannot be guaranteed")
    for name in ("condition", "negative"):
        replay.add_argument(f"--{name}", type=_condition, action="append", help=_HELP[name], metavar="X")
    replay.add_argument("--timeout", type=_seconds, metavar="S", help="time limit of a request in seconds")
    replay.add_argument("-o", "--output", type=_output, metavar="FILE", help=f"where to write: {', '.join(FORMATS)}")

    commands.add_parser("models", parents=[common], help="list the models")
    frontier = commands.add_parser("frontier", parents=[common], help="plot each solver's cost and error as text")
    frontier.add_argument("model", metavar="MODEL", help="name of the model")
    frontier.add_argument(
        "--model-version", dest="version", type=_count, help="version of the model (default: the highest)"
    )
    commands.add_parser("solvers", parents=[common], help="list the solvers")

    compare = commands.add_parser("compare", parents=[common], help="run several solvers on the same noise")
    _add_model(compare, 256)
    compare.add_argument(
        "--solvers",
        type=_solvers,
        default=list(CANDIDATES),
        help="comma-separated: dopri5, rk4-20 (steps), ab3-12/shift(3) (grid), dopri5@1e-6 (tolerance) (default: ten "
        "solvers from euler-10 to dopri5@1e-5)",
    )
    compare.add_argument(
        "--reference", default=REFERENCE, help="solver that all are scored against (default: %(default)s)"
    )
    compare.add_argument(
        "--within",
        type=_percent,
        default=0.01,
        metavar="PERCENT",
        help="largest acceptable distance from the reference, in %% of the samples' spread (default: 1)",
    )
    _add_named(compare, "max_step")
    compare.add_argument(
        "--steps", dest="bare_steps", type=_count, default=20, help="steps for solvers named without any (default: 20)"
    )

    bench = commands.add_parser("bench", parents=[common], help="measure throughput and latency under a small load")
    _add_solving(bench, 16)
    bench.add_argument("--concurrency", type=_within(1, 100), default=4, help="concurrent requests (default: 4)")
    bench.add_argument("--duration", type=_seconds, default=5.0, help="seconds, at most 600 (default: 5)")
    return top


def _common(default: Any) -> _Parser:
    common = _Parser(add_help=False, argument_default=default)
    common.add_argument("--url", help=f"URL of the service (default: PATHLINE_URL, else {DEFAULT_URL})")
    common.add_argument(
        "--api-key",
        metavar="KEY",
        help="key of the service (default: PATHLINE_API_KEY, which stays out of process lists)",
    )
    common.add_argument("--json", action="store_true", default=default, help="print one JSON document")
    return common


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `sample` that were given."""
    found = {
        name: getattr(arguments, name, None) for name in ("solver", "steps", "rtol", "atol", "budget", *_NAMES, *_MODEL)
    }
    found |= conditions(arguments)
    found["shape"] = dict(arguments.shape or ()) or None
    found["timeout_s"] = arguments.timeout
    found["decode"] = None if arguments.decode else False
    return {name: value for name, value in found.items() if value is not None}


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that hold conditions."""
    given, negative = dict(arguments.condition or ()), dict(arguments.negative or ())
    found = {"condition": given.pop("", None), "conditions": given or None}
    return {**found, "negative": negative.get("", negative) or None}


def _add_model(command: argparse.ArgumentParser, num_samples: int) -> None:
    command.add_argument("model", metavar="MODEL", help="name of the model")
    command.add_argument(
        "-n", "--num-samples", type=_count, default=num_samples, help="number of samples (default: %(default)s)"
    )
    command.add_argument("--seed", type=int, help="integer in [0, 2**63); drawn at random and printed if left out")
    command.add_argument(
        "--model-version", dest="version", type=_count, help="version of the model (default: the highest)"
    )
    for name in ("condition", "negative"):
        command.add_argument(f"--{name}", type=_condition, action="append", help=_HELP[name], metavar="X")
    command.add_argument("--shape", type=_size, action="append", help=_HELP["shape"], metavar="T=N")
    _add_named(command, "guidance")
    command.add_argument("--timeout", type=_seconds, metavar="S", help="time limit of a request in seconds")
    command.add_argument(
        "--no-decode", dest="decode", action="store_false", help="return latent states instead of data"
    )


def _add_solving(command: argparse.ArgumentParser, num_samples: int) -> None:
    _add_model(command, num_samples)
    command.add_argument("--solver", help="a name, or with settings: rk4-20, ab3-12/shift(3), dopri5@1e-5")
    command.add_argument("--steps", type=_count, help="number of fixed steps")
    command.add_argument("--rtol", type=float, help="relative tolerance")
    command.add_argument("--atol", type=float, help="absolute tolerance")
    command.add_argument(
        "--budget",
        metavar="LIMITS",
        help="let the service choose the solver, by error=0.01 (1 %% of the spread), nfe=8, ms=40, or several, "
        "separated by commas",
    )
    for name in _NAMES:
        _add_named(command, name)


def _add_named(command: argparse.ArgumentParser, name: str) -> None:
    flag, choices = "--" + name.replace("_", "-"), _CHOICES.get(name)
    kind = _KINDS.get(name, str)
    command.add_argument(flag, type=kind, choices=choices, help=_HELP[name], metavar=None if choices else "X")


def _solvers(text: str) -> list[str]:
    """Split a list of solvers at its commas, except those in parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def flags_in(message: str) -> str:
    """Return a message of the service or the SDK with the names of fields replaced by the command's options.

    A name after a plus is kept: it is part of the text of a solver.
    """
    flags = {"timeout_s": "--timeout", "version": "--model-version"}
    flags |= {
        name: "--" + name.replace("_", "-") for name in ("num_samples", "solver", "steps", "rtol", "atol", *_NAMES)
    }
    named = "|".join(flags)
    message = re.sub(
        rf"(?<!\+)\b({named})=(['\"]?)([^\s,;]+?)\2(?=[\s,;]|$)", lambda found: f"{flags[found[1]]} {found[3]}", message
    )
    message = re.sub(r"(timeout_s, or )?the client's timeout\b", "--timeout", message)  # one option sets both
    message = message.replace("send force true", "use --force")
    words = "|".join(name for name in flags if "_" in name)
    return re.sub(rf"(?<![-+])\b({words})\b", lambda found: flags[found[1]], message)


def _count(text: str) -> int:
    return _within(1, 2**63 - 1)(text)


def _within(low: int, high: int) -> Any:
    def integer(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text} is not allowed; use an integer from {low} to {high}")
        return value

    return integer


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 600:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use seconds above 0, at most 600")
    return value


def _percent(text: str) -> float:
    try:
        value = float(text.removesuffix("%"))
    except ValueError:
        value = math.nan
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use percent above 0, at most 100")
    return value / 100


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} has no known extension; use one of {', '.join(FORMATS)}")
    return path
