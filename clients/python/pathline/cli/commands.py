"""The commands of the command line; each returns its exit status."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shlex
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from pathline._answers import answers_in
from pathline._bar import Bar
from pathline._clients import Client
from pathline._files import numbers, replacing
from pathline._info import ModelInfo
from pathline._response import printable
from pathline._results import SampleResult
from pathline._show import text_table
from pathline.cli.arguments import options
from pathline.cli.bench import measure, text_of
from pathline.cli.output import FORMATS, Tally, note, show

_FIRST, _WIDE = 10, 12
"""Samples shown as a table, and most columns of one."""

_REMEDY = "a looser tolerance, more steps or another solver may help"
_REMEDIES = {
    "deadline": "a longer --timeout, fewer steps or a looser tolerance may help",
    "max_nfe": "a larger --max-nfe or a looser tolerance may help",
}


def sample(arguments: argparse.Namespace) -> int:
    """Draw samples and write them to a file, or show those of one request."""
    with Client(arguments.url, api_key=arguments.api_key) as client, contextlib.ExitStack() as opened:
        path = arguments.output
        file = opened.enter_context(replacing(path)) if path else None  # before any request: it may not be possible
        few = min(10_000, max(2_000, arguments.num_samples // 10))  # for memory, and enough to keep the service busy
        batch = (arguments.batch or few) if file else arguments.num_samples
        follow = opened.enter_context(Bar()).follow
        pages = client.iter_samples(
            arguments.model, arguments.num_samples, batch, seed=arguments.seed, progress=follow, **options(arguments)
        )
        tally = Tally(pages, arguments.num_samples)
        last = _write(tally, arguments, file)
    _report_samples(arguments, tally, last)
    if tally.failed:
        first = tally.failed[0]
        note(
            f"pathline: {len(tally.failed)} of {arguments.num_samples} samples did not reach the end "
            f"(sample {first['index']}: {first['status']}); {_REMEDIES.get(first['status'], _REMEDY)}"
        )
    return 1 if tally.failed else 0


def replay(arguments: argparse.Namespace) -> int:
    """Reproduce the samples of earlier responses, and write them to a file or show them."""
    answers = answers_in(arguments.file)
    with Client(arguments.url, api_key=arguments.api_key) as client, contextlib.ExitStack() as opened:
        path = arguments.output
        file = opened.enter_context(replacing(path)) if path else None
        results = [client.replay(answer, force=arguments.force, **options(arguments)) for answer in answers]
        tally = Tally(results, sum(map(len, results)))
        last = _write(tally, arguments, file)
    _report_samples(arguments, tally, last if len(results) == 1 else None)
    other = sum(not result.digest_matches for result in results)
    if other:
        differences = [difference for result in results for difference in result.differences]
        causes = {f"{d.get('what')} ({d.get('answer')} -> {d.get('here')})": None for d in differences}
        note(f"pathline: the bits differ from those of the original response: {'; '.join(causes)}")
    elif not arguments.json:
        show("the bits match those of the original response")
    return 1 if other or tally.failed else 0


def _write(tally: Tally, arguments: argparse.Namespace, file: IO[bytes] | None) -> SampleResult | None:
    """Write the pages of a tally to a file; without one, return the last of them."""
    if file is None:
        return deque(tally.pages(), maxlen=1)[0]
    FORMATS[arguments.output.suffix.lower()](file, tally)
    return None


def _report_samples(arguments: argparse.Namespace, tally: Tally, shown: SampleResult | None) -> None:
    if arguments.json:
        samples = {} if shown is None else {"samples": numbers(shown.samples)}
        written = {"output": str(arguments.output)} if arguments.output else {}
        _print_json({**tally.describe(), **written, **samples, **(tally.log_densities() if shown else {})})
    elif shown is not None:
        show(str(shown))
        show(_sketch(shown))
        if shown.log_prob is not None:
            show(f"log_prob\n{_array(shown.log_prob)}")
    else:
        show(tally.summary() + (f"\nwritten to {arguments.output}" if arguments.output else ""))


def _array(array: np.ndarray) -> str:
    return np.array2string(array, threshold=20, edgeitems=3, precision=4)


def _sketch(result: SampleResult) -> str:
    """Return the first samples as text: a table of the columns that the model names, or an array."""
    named = result.named(result.samples[:_FIRST], written=True)
    if not result.extra.get("columns") or len(named) > _WIDE:
        return _array(result.samples)
    columns = [
        [f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in of.tolist()] for of in named.values()
    ]
    lines = text_table([list(named), *(list(row) for row in zip(*columns, strict=True))], left=0)
    more = len(result) - _FIRST
    return "\n".join([*lines, f"... and {more:,} more"] if more > 0 else lines)


def models(arguments: argparse.Namespace) -> int:
    """List the models."""
    with Client(arguments.url, api_key=arguments.api_key) as client:
        models = client.models()
        ailing = [
            info for info in models if info.fields.get("status") == "unavailable" or info.fallback_from is not None
        ]
        faults = {info.name: client.model(info.name).fields.get("unavailable") or () for info in ailing}
    if arguments.json:
        _print_json([info.fields for info in models])
    else:
        rows = [
            (info.name, info.version, _shape(info.event_shape), _shape(info.data_shape), _status(info))
            for info in models
        ]
        _print_table(("model", "version", "state", "sample", "status"), rows)
        for name, left_s in models.training.items():
            note(f"{name}: training{'' if left_s is None else f', {left_s:.0f} s left'}")
        for name, versions in faults.items():
            for fault in versions:
                note(f"{name} v{fault['version'] or '?'} cannot be served: {fault['reason']}")
        for path, reason in models.passed_over.items():
            note(f"{path}: {reason}")
    return 0


def _status(info: ModelInfo) -> str | None:
    status = info.fields.get("status")
    return status if info.fallback_from is None else f"{status}; version {info.fallback_from} cannot be loaded"


def frontier(arguments: argparse.Namespace) -> int:
    """Show the cost and error of each solver on a model."""
    with Client(arguments.url, api_key=arguments.api_key) as client:
        frontier = client.frontier(arguments.model, arguments.version)
    if arguments.json:
        _print_json(frontier.fields)
    else:
        show(str(frontier))
    return 0


def solvers(arguments: argparse.Namespace) -> int:
    """List the solvers."""
    with Client(arguments.url, api_key=arguments.api_key) as client:
        solvers = client.solvers()
    if arguments.json:
        _print_json([info.fields for info in solvers])
    else:
        rows = [(info.name, info.order, "adaptive" if info.adaptive else "fixed", info.cost) for info in solvers]
        _print_table(("solver", "order", "steps", "cost in NFE"), rows)
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Measure solvers on a model, and say which one it needs."""
    measured = 0

    def tell(point: Mapping[str, Any]) -> None:
        nonlocal measured
        measured += 1
        sys.stderr.write(f"\r{measured} solvers measured, now {printable(str(point.get('solver', ''))):<24}")
        sys.stderr.flush()

    members = {"budget": {"max_error": arguments.within}, **options(arguments)}
    with Client(arguments.url, api_key=arguments.api_key) as client:
        table = client.compare(
            arguments.model,
            arguments.solvers,
            arguments.num_samples,
            seed=arguments.seed,
            progress=tell if sys.stderr.isatty() else None,
            **members,
        )
    if measured:
        sys.stderr.write(f"\r{'':<60}\r")
    if arguments.json:
        _print_json(table.to_dict())
        return 0
    show(str(table))
    if table.choice:
        show(f"draw with it: pathline sample {arguments.model} --solver {shlex.quote(table.choice['solver'])}")
    return 0


def bench(arguments: argparse.Namespace) -> int:
    """Measure throughput and latency under a small load."""
    with Bar() as bar:
        report = asyncio.run(
            measure(
                arguments.url,
                arguments.api_key,
                arguments.model,
                arguments.num_samples,
                concurrency=arguments.concurrency,
                duration_s=arguments.duration,
                seed=arguments.seed,
                options=options(arguments),
                bar=bar,
            )
        )
    if arguments.json:
        _print_json(report)
    else:
        show(text_of(report))
    return 1 if report["errors"] else 0


def _print_json(content: Any) -> None:
    show(json.dumps(content, allow_nan=False))


def _shape(shape: Sequence[int | str] | None) -> str:
    return "-" if shape is None else "x".join(map(str, shape))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    table = [head, *([("-" if cell is None else str(cell)) for cell in row] for row in rows)]
    for line in text_table(table, left=len(head)):
        show(line)
