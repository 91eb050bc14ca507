"""The command `python -m models import`: its arguments and its output."""

import argparse
import json
import os
import re
import time
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Any, get_args
from urllib.request import ProxyHandler, Request, build_opener

import torch
from torch import Tensor

from models.architectures import SIZES
from models.arrays import load_array
from models.checkpoint.card import read_card
from models.compute import Compute
from models.conditions import NamedCondition
from models.conventions import Predicts
from models.importing.declared import Declared
from models.importing.files import ForeignError
from models.importing.preview import preview
from models.importing.statistics import NORMALISATIONS, Affine, of_actions, of_conditions, read_statistics
from models.importing.weights import Imported, import_program, import_weights
from models.messages import first_line, printable
from models.paths import PathName
from models.shapes import NAME, Shape
from models.velocity import FieldKind

ALLOW = "PATHLINE_ALLOW_PROGRAMS"
"""The setting that allows programs to be imported and served."""

_NOTICED_S = 8.0
"""Seconds in which a running service has noticed a new model, even if it is busy."""

_FIELDS = {"velocity": FieldKind.VELOCITY, "average": FieldKind.AVERAGE}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    add = parser.add_argument
    add("file", type=Path, help="weights: .safetensors, .pt, .pth, .ckpt, .bin; no code in it is run")
    add("--name", required=True, help="name of the model in the repository")
    add("--version", type=int, help="version to save as (default: the next)")
    add("--architecture", help=f"the network that has these weights: {', '.join(SIZES)}")
    add("--config", default="{}", help="the architecture's config: JSON, or a .json or .toml file")
    add("--program", action="store_true", help="the file is a program of torch.export (.pt2)")
    add("--event-shape", type=_shape, help="shape of one state of the program, such as 1x28x28; 80xT names a free axis")
    add("--axes", default="{}", help='sizes allowed for free axes: JSON, such as {"T": {"max": 2000}}, or a file')
    add("--inputs", type=_names, metavar="x,t,...", help="names of the program's arguments in order: x, t, conditions")
    add("--conditions", default="{}", help="properties of the conditions (null, default, scale, ...): JSON or a file")
    add("--null", action="append", default=[], metavar="NAME=FILE.npy", help="array that replaces a missing condition")
    add("--classes", type=int, metavar="N", help="the program takes class labels from 0 to N - 1")
    add("--null-class", action="store_true", help="label N means no condition")
    add("--which", choices=("ema", "raw"), help="averaged or raw weights, if the file has both")
    add("--noise-at", type=int, choices=(0, 1), help="the network's time at which x is noise")
    add("--time-scale", type=float, dest="scale", help="the network's largest time: 1, or 1000")
    add(
        "--sign", type=int, choices=(1, -1), help="1: the network returns dx/dt in its own time; -1: the negative of it"
    )
    add("--predicts", choices=get_args(Predicts), help="what the network returns (default: velocity)")
    add(
        "--field",
        choices=tuple(_FIELDS),
        default="velocity",
        help="what a program returns: average is the velocity over a step, with its end among --inputs: x,t,r",
    )
    add("--path", choices=get_args(PathName), help="path that it was trained on (default: linear)")
    add("--schedule", help='noise of the path by time: JSON, such as {"kind": "steps"}, or a file')
    add("--start", type=float, help="the network's own time at which sampling starts, such as 981 or 80")
    add("--end", type=float, help="last own time at which the network is evaluated, such as 0.002")
    add("--stop", type=float, help="own time of the samples, if they still have noise, such as 0 for its last step")
    add("--start-scale", type=float, help="standard deviation of the states that sampling starts from")
    add(
        "--noise-centred",
        type=lambda text: int(text) if text.isdecimal() else text,
        metavar="AXIS",
        help="axis of a program's states along which noise has the mean zero, for an equivariant network: N of Nx3",
    )
    add(
        "--noise-independent",
        choices=("yes", "no"),
        default="yes",
        help="no: it was trained on noise that depends on the data (minibatch optimal transport, reflow, a student)",
    )
    add("--compute", choices=get_args(Compute), help="precision in which the network computes")
    add("--solver", help="solver for requests that name none, such as euler-28/shift(3)")
    add(
        "--own-times",
        type=_times,
        metavar="T,T,...",
        help="grid of --solver in the network's own times, from noise to data: those of its calls",
    )
    add(
        "--scheduler",
        metavar="FILE.json",
        help="convention and grid of --solver as in this scheduler_config.json of diffusers: a file, or JSON",
    )
    add("--patch", type=int, help="size of a token along each free axis, for a scheduler with a dynamic shift")
    add("--data-shape", type=_shape, help="shape of a decoded sample, such as 28x28")
    add("--prelude", type=Path, metavar="FILE.pt2", help="program from conditions to conditions")
    add(
        "--prelude-inputs", type=_names, metavar="NAME,...", help="names for the prelude's arguments (default: its own)"
    )
    add(
        "--prelude-outputs",
        type=_names,
        metavar="NAME,...",
        help="names of the conditions that the prelude returns (default: the others)",
    )
    add("--decoder", type=Path, metavar="FILE.pt2", help="program from states to data")
    add(
        "--decoder-mean",
        type=_numbers,
        metavar="M,...",
        help="mean in data = state * scale + mean: one, one per channel, or .npy",
    )
    add("--decoder-scale", type=_numbers, metavar="S,...", help="scale, in the same forms")
    add(
        "--stats",
        metavar="FILE.json",
        help="statistics of lerobot or openpi: mean and scale of the conditions of the same names, and of actions",
    )
    add(
        "--normalisation",
        choices=NORMALISATIONS,
        default="mean-std",
        help="which of these statistics (default: mean-std)",
    )
    add("--clip", type=float, nargs=2, metavar=("LOW", "HIGH"), help="range of decoded samples")
    add("--row-by-row", action="store_true", help="give each row its own network call, for a network that mixes rows")
    add("--check", action="store_true", help="draw samples; print their mean, spread and a sketch")


def run(options: argparse.Namespace) -> int:
    """Import a file and print the report.

    Raises:
        CheckpointError: the file was refused, or the checkpoint could not be written.
    """
    decoder = {"data_shape": options.data_shape, "clip": options.clip, "program": options.decoder}
    decoder |= {"mean": options.decoder_mean, "scale": options.decoder_scale}
    decoder = {name: value for name, value in decoder.items() if value is not None}
    statistics = {}
    if options.stats is not None:
        statistics = read_statistics(read_config(options.stats, "--stats"), options.normalisation)
        if not decoder.keys() & {"mean", "scale", "program"}:
            decoder |= of_actions(statistics)
    shared = {"declared": _declared(options), "decoder": decoder, "version": options.version}
    allowed = os.environ.get(ALLOW, "").strip().lower() in ("1", "true", "yes", "on")
    if (options.decoder is not None or options.program) and not allowed:
        raise ForeignError(f"programs are off; set {ALLOW}=true to import them, and to serve them")
    imported = _program(options, statistics, **shared) if options.program else _weights(options, **shared)
    print(*imported.report, f"saved: {imported.path}", sep="\n")
    if options.check:
        print(*preview(imported.path), sep="\n")
    if read_card(imported.path).runs_programs:
        print(*refusal(options.name), sep="\n")
    print(f"now: pathline sample {options.name}")
    return 0


def refusal(name: str) -> list[str]:
    """Return lines on whether the running service refuses the program just imported; general ones if none answers."""
    port = os.environ.get("PATHLINE_PORT", "").strip() or "8000"
    url = (os.environ.get("PATHLINE_URL", "").strip() or f"http://127.0.0.1:{port}").rstrip("/")
    key = os.environ.get("PATHLINE_API_KEY", "").strip()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    general = f"it holds a program, which a service refuses unless it was started with {ALLOW}=true"
    until = time.monotonic() + _NOTICED_S
    while True:
        try:
            request = Request(f"{url}/v1/models/{name}", headers=headers)  # noqa: S310
            with build_opener(ProxyHandler({})).open(request, timeout=_NOTICED_S) as response:
                document = json.load(response)
            if document["status"] == "served":
                return [f"the service at {url} serves it"]
            if reasons := [fault["reason"] for fault in document["unavailable"] if ALLOW in fault["reason"]]:
                return [f"the service at {url} refuses it: {reasons[0]}", f"stop it, and start it with {ALLOW}=true"]
        except (OSError, HTTPException, ValueError, KeyError, TypeError) as error:
            if getattr(error, "code", None) != HTTPStatus.NOT_FOUND:  # nothing listens, or it is something else
                return [general]
        if time.monotonic() > until:  # it has another repository, or is slow
            return [general]
        time.sleep(0.2)


def _declared(options: argparse.Namespace) -> Declared:
    names = ("noise_at", "scale", "sign", "predicts", "path", "start", "end", "stop", "start_scale", "compute")
    schedule = None if options.schedule is None else read_config(options.schedule, "--schedule")
    independent = options.noise_independent == "yes"
    declared = Declared(
        **{name: getattr(options, name) for name in names}, schedule=schedule, noise_independent=independent
    )
    if options.scheduler is None:
        return replace(declared, sampling=declared.sampled(options.solver, options.own_times))
    if options.own_times is not None:
        raise ForeignError("--scheduler and --own-times both give a grid; leave one of them out")
    return declared.scheduled(read_config(options.scheduler, "--scheduler"), options.solver, options.patch)


def _program(options: argparse.Namespace, statistics: Mapping[str, Affine], **shared: Any) -> Imported:
    if options.prelude is None and (options.prelude_inputs or options.prelude_outputs):
        raise ForeignError("--prelude-inputs and --prelude-outputs need --prelude, the program")
    names = [*(options.inputs or ()), *(options.prelude_inputs or ())]
    stated = _with_arrays(read_config(options.conditions, "--conditions"))
    return import_program(
        options.file,
        options.models_dir,
        options.name,
        options.event_shape,
        labels=_labels(options),
        inputs=options.inputs,
        conditions=of_conditions(statistics, names, stated),
        nulls=dict(map(_null, options.null)),
        row_by_row=options.row_by_row,
        prelude=options.prelude,
        prelude_inputs=options.prelude_inputs,
        prelude_outputs=options.prelude_outputs,
        axes=read_config(options.axes, "--axes"),
        kind=_FIELDS[options.field],
        centred=options.noise_centred,
        **shared,
    )


def _labels(options: argparse.Namespace) -> NamedCondition | None:
    if options.classes is None:
        if options.null_class:
            raise ForeignError("--null-class needs --classes N, the number of class labels")
        return None
    try:
        return NamedCondition.label(options.classes, null=options.null_class)
    except ValueError:
        raise ForeignError(f"--classes is {options.classes}; it must be from 1 to {1 << 20}") from None


def _with_arrays(conditions: dict[str, Any]) -> dict[str, Any]:
    """Read mean and scale of conditions that name a .npy file; a first axis of size 1 is left out."""
    for name, entry in conditions.items():
        for key in ("mean", "scale"):
            if isinstance(entry, dict) and isinstance(text := entry.get(key), str):
                try:
                    array = load_array(text)
                except (OSError, ValueError) as error:
                    raise ForeignError(f"--conditions: {key} of {name}: {text}: {first_line(error)}") from None
                entry[key] = (array[0] if array.ndim > 1 and len(array) == 1 else array).tolist()
    return conditions


def _weights(options: argparse.Namespace, **shared: Any) -> Imported:
    if options.prelude is not None:
        raise ForeignError("--prelude makes conditions by name, which only a --program takes")
    if options.noise_centred is not None:
        raise ForeignError("--noise-centred is for a --program; no architecture here is equivariant")
    if options.row_by_row:
        raise ForeignError("--row-by-row is for a --program; no architecture here mixes rows")
    if options.architecture is None:
        raise ForeignError("--architecture is missing; name the network that these weights are for, or add --program")
    where, config = (options.file, options.models_dir, options.name), read_config(options.config)
    return import_weights(*where, options.architecture, config, which=options.which, **shared)


def read_config(text: str, option: str = "--config") -> dict[str, Any]:
    """Read a config from JSON text, or from a JSON or TOML file.

    Raises:
        ForeignError: it is neither, or not an object.
    """
    try:
        if text.lstrip().startswith("{"):
            config = json.loads(text)
        else:
            content = Path(text).read_text()
            config = tomllib.loads(content) if text.endswith(".toml") else json.loads(content)
    except OSError as error:
        raise ForeignError(f"{option} {text}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ForeignError(f"{option} {printable(text)}: {error}") from None
    if not isinstance(config, dict):
        raise ForeignError(f"{option} {text}: is not a JSON object")
    return config


def _times(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of times; write it as 80,40,10,0") from None


def _numbers(text: str) -> Tensor:
    """Read comma-separated numbers, or an array from a file."""
    try:
        if text.endswith(".npy"):
            return torch.from_numpy(load_array(text))
        numbers = [float(part) for part in text.split(",")]
        return torch.tensor(numbers[0] if len(numbers) == 1 else numbers, dtype=torch.float64)
    except (OSError, ValueError, TypeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is neither numbers such as 0.5,0.1 nor an array: {error}") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _null(text: str) -> tuple[str, Tensor]:
    """Read the name and the tensor from `name=file.npy`."""
    name, _, path = text.partition("=")
    try:
        return name, torch.from_numpy(load_array(path))
    except (OSError, ValueError, TypeError) as error:
        raise ForeignError(f"--null {printable(text)}: {first_line(error)}; write it as text=null.npy") from None


def _shape(text: str) -> Shape:
    parts = [int(part) if part.isdecimal() else part for part in text.split("x")]
    if not all(isinstance(part, int) or re.fullmatch(NAME, part) for part in parts):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape; write it as 28x28, or 80xT with a free axis")
    return tuple(parts)
