"""Arguments of the command line."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from pathline._conditions import ONE
from pathline._fields import FIELDS
from pathline._request import nearest
from pathline._route import DEFAULT_URL, VERSION
from pathline.cli.output import FORMATS
from pathline.cli.server import COMMANDS
from pathline.errors import InvalidValue

_FLAGS = {"version": "--model-version", "timeout_s": "--timeout", "decode": "--no-decode"}
"""Options named differently from the fields that they set."""

_SOLVING = tuple(
    name for name, field in FIELDS.items() if name not in ("model", "conditions") and field.kind != "array"
)
"""Fields of a request that are options; `--condition` sets `conditions`, too."""

_MODEL = ["num_samples", "seed", "version", "condition", "negative", "shape", "guidance", "timeout_s", "noise_scale"]
"""Those that apply to several solvers alike."""

_REPEATED = ("condition", "negative", "known", "shape")
"""Options that can be repeated."""

_ABOUT = {
    "condition": "label, JSON such as [0.5, 1], or, for each of several, NAME=FILE.npy or NAME=JSON",
    "negative": "condition that replaces a null in guidance, in the same forms",
    "guidance": "strength of classifier-free guidance, or JSON with terms, interval, projection and rescale",
    "known": "numbers of the samples that are known: NAME=FILE.npy or NAME=JSON for values, mask, mode, ..., or a JSON "
    "object of these",
    "shape": "size of a free axis of the samples, such as T=344; can be repeated",
    "decode": "return latent states instead of data",
    "budget": "let the service choose the solver, by error=0.01 (1 % of the spread), nfe=8, ms=40, or several, "
    "separated by commas",
}
"""Help for options that are written differently from the fields that they set."""

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
        array = np.load(value, mmap_mode="r", allow_pickle=False)  # rows are read when they are needed
    except Exception as error:  # a damaged header can raise anything
        raise argparse.ArgumentTypeError(f"{value!r} cannot be read: {error}") from None
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        kind = array.dtype if isinstance(array, np.ndarray) else "an archive"
        raise argparse.ArgumentTypeError(f"{value!r} is {kind}; a condition is an array of numbers")
    return name, array


def _known(text: str) -> tuple[str, Any]:
    """Return the name of a member of `known` and its value; an empty name with an object of several."""
    name, value = _condition(text)
    if not name and not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is neither NAME=FILE.npy, NAME=JSON nor a JSON object")
    return name, value


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


def _structure(text: str) -> Any:
    """Return an object or a list that is written as JSON, and any other text as it is."""
    value = _value(text)
    return value if isinstance(value, (dict, list)) else text


def _guidance(text: str) -> Any:
    value = _value(text)
    if isinstance(value, dict) or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return value if isinstance(value, dict) else float(value)
    raise argparse.ArgumentTypeError(f"{text!r} is neither a number nor a JSON object")


class _OneLineParser(argparse.ArgumentParser):
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
    flags = {name: _flag(name) for name in vars(arguments) if name != "command"}
    written = {flag[2:].replace("-", "_"): flag for flag in flags.values()} | flags
    near = nearest(unknown.partition("=")[0].lstrip("-").replace("-", "_"), list(written))
    return f"; did you mean {written[near]}?" if near and unknown.startswith("-") else ""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    # These may come before or after the command; omitting one after it must not undo one given before it.
    common = _common(argparse.SUPPRESS)
    top = _OneLineParser(
        prog="pathline", description="Samples from a Pathline service.", epilog=_EPILOG, parents=[_common(None)]
    )
    top.add_argument("--version", action="version", version=f"pathline {VERSION}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")

    sample = commands.add_parser(
        "sample", parents=[common], help="draw samples", epilog="Without -o, a summary is printed."
    )
    _add_model(sample, _SOLVING)
    _add_output(sample)
    sample.add_argument(
        "--batch",
        type=_within(1, 2**63 - 1),
        help="samples per request (default: a tenth of all, from 2,000 to 10,000)",
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
    for name in ("condition", "negative", "known", "timeout_s"):
        add_field(replay, name)
    _add_output(replay)

    commands.add_parser("models", parents=[common], help="list the models")
    frontier = commands.add_parser("frontier", parents=[common], help="plot each solver's cost and error as text")
    frontier.add_argument("model", metavar="MODEL", help="name of the model")
    add_field(frontier, "version")
    commands.add_parser("solvers", parents=[common], help="list the solvers")

    compare = commands.add_parser("compare", parents=[common], help="measure solvers, and say which one a model needs")
    _add_model(compare, _MODEL)
    compare.set_defaults(num_samples=None)
    compare.add_argument(
        "--solvers",
        type=_solvers,
        help="comma-separated: rk4-20 (steps), ab3-12/shift(3) (grid), dopri5@1e-6 (tolerance) (default: the service's "
        "candidates, cheapest first)",
    )
    compare.add_argument(
        "--within",
        type=_percent,
        default=0.01,
        metavar="PERCENT",
        help="error that 95 %% of samples end within, in %% of the spread (default: 1)",
    )
    add_field(compare, "budget")

    bench = commands.add_parser("bench", parents=[common], help="measure throughput and latency under a small load")
    _add_model(bench, _SOLVING)
    bench.set_defaults(num_samples=16)
    bench.add_argument("--concurrency", type=_within(1, 100), default=4, help="concurrent requests (default: 4)")
    bench.add_argument("--duration", type=_seconds, default=5.0, help="seconds, at most 600 (default: 5)")
    return top


def _common(default: Any) -> _OneLineParser:
    common = _OneLineParser(add_help=False, argument_default=default)
    common.add_argument("--url", help=f"URL of the service (default: PATHLINE_URL, else {DEFAULT_URL})")
    common.add_argument(
        "--api-key",
        metavar="KEY",
        help="key of the service (default: PATHLINE_API_KEY, which stays out of process lists)",
    )
    common.add_argument("--json", action="store_true", default=default, help="print one JSON document")
    return common


def options(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options of `sample` that were given, except for those that commands name themselves."""
    members = {name: getattr(arguments, name, None) for name in _SOLVING if name not in ("num_samples", "seed")}
    known = dict(getattr(arguments, "known", None) or ())
    members |= {"known": {**known.pop("", {}), **known} or None}
    members |= conditions(arguments) | {"shape": dict(getattr(arguments, "shape", None) or ()) or None}
    return {name: value for name, value in members.items() if value is not None}


def conditions(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the options that hold conditions.

    Raises:
        InvalidValue: One is given twice, or several without names.
    """
    positive = _by_name("condition", arguments.condition or ())
    members = {"condition": positive.pop("", None), "conditions": positive or None}
    negative = _by_name("negative", arguments.negative or ())
    return {**members, "negative": {name or ONE: value for name, value in negative.items()} or None}


def _by_name(option: str, pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, value in pairs:
        if name in values and name:
            raise InvalidValue(f"--{option} {name} is given twice; give it once")
        values[name] = value
    if "" in values and len(pairs) > 1:
        raise InvalidValue(f"--{option}: give each of several conditions with its name, NAME=FILE.npy or NAME=JSON")
    return values


def _add_model(command: argparse.ArgumentParser, names: Sequence[str]) -> None:
    command.add_argument("model", metavar="MODEL", help="name of the model")
    for name in names:
        add_field(command, name)


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument("-o", "--output", type=_output, metavar="FILE", help=f"where to write: {', '.join(FORMATS)}")


def add_field(command: argparse.ArgumentParser, name: str) -> None:
    """Add the option for a field of a request."""
    field = FIELDS[name]
    about = _ABOUT.get(name, field.about).replace("%", "%%")
    if field.kind == "boolean":
        command.add_argument(_flag(name), dest=name, action="store_const", const=not field.default, help=about)
        return
    lists: dict[str, Any] = {"action": "append"} if name in _REPEATED else {}
    command.add_argument(
        *(("-n",) if name == "num_samples" else ()),
        _flag(name),
        dest=name,
        type=_KINDS.get(name) or (_within(field.low, 2**63 - 1) if field.low is not None else _TYPES[field.kind]),
        choices=field.choices or None,
        default=field.default if name == "num_samples" else None,
        metavar=None if field.choices else "X",
        help=about if field.default is None else f"{about} (default: {field.default})",
        **lists,
    )


def _flag(name: str) -> str:
    return _FLAGS.get(name, "--" + name.replace("_", "-"))


def _solvers(text: str) -> list[str]:
    """Split a list of solvers at its commas, except those in parentheses."""
    return [part.strip() for part in re.split(r",(?![^()]*\))", text) if part.strip()]


def flags_in(message: str, *more: str) -> str:
    """Return a message of the service or the SDK with the names of fields replaced by the command's options.

    A name after a plus is kept: it is part of the text of a solver. `more` are names beside those of fields.
    """
    flags = {
        name: _flag(name) for name in (*_SOLVING, *more) if name not in ("decode", "condition", "negative", "known")
    }
    named = "|".join(flags)
    message = re.sub(
        rf"(?<!\+)\b({named})=(['\"]?)([^\s,;]+?)\2(?=[\s,;]|$)", lambda match: f"{flags[match[1]]} {match[3]}", message
    )
    message = re.sub(r"(timeout_s, or )?the client's timeout\b", "--timeout", message)  # one option sets both
    message = message.replace("send force true", "use --force")
    words = "|".join(name for name in flags if "_" in name)
    return re.sub(rf"(?<![-+])\b({words})\b", lambda match: flags[match[1]], message)


def _number(kind: type[float], allowed: Callable[[Any], bool], use: str) -> Callable[[str], Any]:
    """Return a reader of numbers; `use` says in words which are allowed."""

    def number(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if allowed(value):
                return value
        raise argparse.ArgumentTypeError(f"{text} is not allowed; use {use}")

    return number


def _within(low: int, high: int) -> Callable[[str], int]:
    return _number(int, lambda value: low <= value <= high, f"an integer from {low} to {high}")


_seconds = _number(float, lambda value: 0 < value <= 600, "seconds above 0, at most 600")


def _percent(text: str) -> float:
    return _number(float, lambda value: 0 < value <= 100, "percent above 0, at most 100")(text.removesuffix("%")) / 100


def _output(text: str) -> Path:
    path = Path(text)
    if path.suffix.lower() not in FORMATS:
        raise argparse.ArgumentTypeError(f"{text!r} has no known extension; use one of {', '.join(FORMATS)}")
    return path


_TYPES: dict[str, Any] = {"integer": int, "number": float, "string": str, "any": _structure, "object": str}
_KINDS: dict[str, Any] = {
    "condition": _condition,
    "negative": _condition,
    "known": _known,
    "shape": _size,
    "guidance": _guidance,
    "timeout_s": _seconds,
}
"""How options are read: those of these fields, and others by the types of their fields."""
