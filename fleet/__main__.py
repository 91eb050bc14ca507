"""The command `python -m fleet`: bulk jobs."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from itertools import cycle, islice
from pathlib import Path

from pathline._bulk_arguments import BulkArguments
from pathline._bulk_spec import BLOCK, FIELDS, JobSpec, Receipt, Summary
from pathline.bulk_folder import ShardQueue
from pathline.cli.arguments import add_field, flags_in
from pathline.cli.arguments import options as options_of
from pathline.errors import BulkConflict, InvalidValue
from tqdm import tqdm

from fleet.errors import CommandError, FleetError
from fleet.run import run
from fleet.store import FORMATS, Target
from fleet.workers import InProcess, Local, Worker
from service.settings import Settings, SettingsError, load_settings

_INDEX = "JOB_COMPLETION_INDEX"  # set by Kubernetes in the pods of an Indexed Job
_STOPPED = 130
_OWN = ("total", "format", "shard_rows", "workers", "tries", "threads")
"""Options of a job that are no fields of a request."""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="python -m fleet", description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _add_sample(commands.add_parser("sample", help="start or resume a job: write samples to files"))
    verify = commands.add_parser("verify", help="reread all rows of a job and check them")
    verify.add_argument("url", metavar="URL")
    verify.add_argument("--quiet", action="store_true", help="no progress bar")
    verify.set_defaults(run=verify_)
    export = commands.add_parser("export", help="write a job's samples to one .npz or .npy file for `training`")
    export.add_argument("url", metavar="URL")
    export.add_argument("file", type=Path)
    pairs = "write noise and states, for `training fit --reflow --pairs`"
    export.add_argument("--pairs", action="store_true", help=pairs)
    export.set_defaults(run=export_)
    return parser


def _add_sample(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=sample)
    parser.add_argument("model", nargs="?", help="name of the model; may be left out to resume a job")
    add = parser.add_argument
    add("--to", required=True, metavar="URL", help="folder, or any URL that fsspec supports")
    add("--total", type=int, help="number of samples")
    for name in ("seed", "first_index", "version", *FIELDS):
        if name not in ("conditions", "decode"):
            add_field(parser, name)
    add("--conditions", type=Path, metavar="FILE", help="Parquet or CSV with columns condition and count")
    states = "write the states of the flow without decoding them"
    add("--states", dest="decode", action="store_const", const=False, help=states)
    add("--format", choices=FORMATS, help="format of the shards (default: parquet)")
    add("--on", choices=("local", "ray", "indexed"), default="local", help="where the workers run")
    add("--workers", type=int, default=1, help="shards made at the same time (default: 1)")
    add("--threads", type=int, help="CPU threads of the network in each worker (default: 1)")
    add("--shard-rows", type=int, help=f"rows per shard, a multiple of {BLOCK} (default: about two minutes' work)")
    add("--tries", type=int, default=3, help="attempts before a shard is given up (default: 3)")
    add("--quiet", action="store_true", help="no progress bar")


def sample(options: argparse.Namespace) -> int:
    """Start or resume a job; return 0 if it is complete, 1 if shards are missing, 130 after Ctrl-C."""
    from fleet.begin import await_job, begin, read_table  # imports torch, which the other commands do not need

    arguments = BulkArguments.of(
        options.model,
        options.total,
        None if options.conditions is None else read_table(options.conditions),
        options.format,
        options.shard_rows,
        options.workers,
        options.tries,
        {**options_of(options), "seed": options.seed},
        FORMATS,
    )
    settings, target = load_settings(), Target(options.to)
    index = _index(options.workers) if options.on == "indexed" else None
    if target.store.in_memory and (options.on == "ray" or options.workers > 1):
        raise CommandError(f"{options.to}: is the memory of a single process; use --workers 1, or another address")
    if index:
        spec, new = await_job(target), False
    else:
        spec, new = begin(arguments, options.threads, target, settings)
    mine = None if index is None else range(index, spec.shards, options.workers)
    if not options.quiet:
        print(_opening(spec, target, new), file=sys.stderr, flush=True)
    try:
        queue = ShardQueue(target, spec, options.tries, mine)
        run(queue, _workers(options, spec, target, settings), options.quiet)
        left = queue.left()
    except KeyboardInterrupt:
        print(f"fleet: stopped; resume with: python -m fleet sample --to {options.to}", file=sys.stderr)
        return _STOPPED
    for shard, reason in sorted(queue.failed.items()):
        print(f"fleet: shard {shard} was given up after {options.tries} tries: {reason}", file=sys.stderr)
    if left:
        print(f"{spec.shards - left} of {spec.shards} shards are done; run this again to make the others")
        return 1 if index is None or queue.failed else 0
    _report(spec, target)
    return 0


def _index(workers: int) -> int:
    text = os.environ.get(_INDEX, "")
    if not text.isdecimal() or int(text) >= workers:
        raise CommandError(
            f"--on indexed needs {_INDEX}, set by Kubernetes to a number below --workers {workers}; found {text!r}"
        )
    return int(text)


def _workers(options: argparse.Namespace, spec: JobSpec, target: Target, settings: Settings) -> Sequence[Worker]:
    from fleet.maker import devices

    store, device_names = target.store, devices(settings)
    if options.on == "ray":
        from fleet.ray_jobs import OnRay

        gpu = device_names[0].startswith("cuda")
        return [OnRay(options.to, store.options, options.workers, spec.threads, gpu)] * options.workers
    if options.on == "indexed" or store.in_memory:
        return [InProcess(options.to, store.options, settings)]
    return [Local(options.to, store.options, device) for device in islice(cycle(device_names), options.workers)]


def _opening(spec: JobSpec, target: Target, new: bool) -> str:
    what = "new job" if new else f"job with {len(target.done())} of {spec.shards} shards done"
    size = spec.range(0)[1]
    return (
        f"fleet: {what}: {spec.total:,} samples of {spec.model}/{spec.version}, seed {spec.seed}, "
        f"{spec.shards} shards of {size:,} rows, to {target.address}"
    )


def _report(spec: JobSpec, target: Target) -> None:
    summary = target.summary(spec)
    print(
        f"{summary.rows:,} samples in {spec.shards} shards, {summary.nfe:,} NFE, {summary.seconds:,.1f} worker seconds"
    )
    odd = {name: count for name, count in summary.status.items() if name != "success"}
    if odd:
        print("not every sample succeeded: " + ", ".join(f"{count} {name}" for name, count in sorted(odd.items())))
    if not summary.deterministic:
        print(
            "this model's bits depend on which rows are computed together, so the fingerprint applies to these files "
            "only"
        )
    print(f"fingerprint {summary.fingerprint}")


def verify_(options: argparse.Namespace) -> int:
    """Read every row of a job and check it against the receipts; return 0 if the job is complete and correct."""
    target = Target(options.url)
    spec = target.job()
    summary, faulty, missing = Summary(), 0, set(range(spec.shards)) - target.done()
    shards = tqdm(
        target.verify(spec), total=spec.shards - len(missing), unit="shard", disable=options.quiet, file=sys.stderr
    )
    for shard, outcome in shards:
        if isinstance(outcome, Receipt):
            summary.add(outcome)
        else:
            faulty += 1
            tqdm.write(f"fleet: shard {shard}: {outcome}", file=sys.stderr)
    if faulty:
        print("fleet: delete the receipts of these shards and run `sample` again to remake them", file=sys.stderr)
    if missing:
        shown = ", ".join(map(str, sorted(missing)[:10])) + (", ..." if len(missing) > 10 else "")
        print(f"fleet: {len(missing)} of {spec.shards} shards have no receipt: {shown}", file=sys.stderr)
    if faulty or missing:
        return 1
    print(f"{summary.rows:,} samples in {spec.shards} shards match their receipts")
    print(f"fingerprint {summary.fingerprint}")
    return 0


def export_(options: argparse.Namespace) -> int:
    """Write all rows to one file."""
    from fleet.export import export, export_pairs

    rows = (export_pairs if options.pairs else export)(Target(options.url), options.file)
    print(f"wrote {rows:,} {'pairs' if options.pairs else 'samples'} to {options.file}")
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Run a command; report an error as one line on stderr; return the exit code, 2 for wrong usage."""
    try:
        options = parser().parse_args(arguments)
        return options.run(options)
    except SystemExit as stop:  # argparse: 0 after --help, 2 after an error
        return int(stop.code or 0)
    except (CommandError, BulkConflict, SettingsError) as error:
        message, code = error, 2
    except InvalidValue as error:
        message, code = flags_in(str(error), *_OWN), 2
    except FleetError as error:
        message, code = error, 1
    except KeyboardInterrupt:
        return _STOPPED
    print(f"fleet: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Python is not finalized: threads that libraries of stores and formats leave behind may make C++ abort then.
    os._exit(code)
