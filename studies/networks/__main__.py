"""`python -m studies.networks [NAME ...]`: networks that people bring, served, beside plain loops of their libraries.

Each network of `CASES` is imported and served by a process with one thread. Eight requests that differ (seed,
conditions, shape) are sent one by one and at once, and drawn in this process by the library's own sampler, also with
one thread, in turn.

off by       largest difference from the library's sampler, relative to the largest number of a sample
float64      the same, from the sampler in float64: the service, and the library in float32
rows a call  of the network, one by one and at once
alone, eight processor time of the service's process, with HTTP, over that of the plain loops: one by one, and at once

It fails if the bits of an answer depend on the other requests. Milliseconds of processor time a request go to stderr.
"""

from __future__ import annotations

import argparse
import io
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from numpy.typing import NDArray
from pathline._request import sample_request

from studies.networks.case import Case
from studies.networks.of_diffusers import dit, edm, flux, sd3, unet2d
from studies.networks.others import egnn, large, matcha, sbi, smolvla, torchcfm
from studies.serving.servers import Running, server

CASES: dict[str, Callable[[Path], Case]] = {
    each.__name__: each for each in (torchcfm, sd3, flux, dit, unet2d, matcha, smolvla, sbi, edm, egnn, large)
}
"""What imports a network into a repository, by name."""

REQUESTS, ROUNDS = 8, 5

HEAD = (
    "| network | from | parameters | own lines | the library's sampler | off by | float64: served, library "
    "| rows a call: one by one, at once | alone | eight |\n|---|---|---|---|---|---|---|---|---|---|"
)


class Served:
    """A case behind a service, and its eight requests."""

    def __init__(self, case: Case, running: Running) -> None:
        self._running, self._http = running, httpx.Client(base_url=running.url, timeout=600, trust_env=False)
        self._requests = [sample_request(case.model, case.samples, case.options(k)) for k in range(REQUESTS)]
        self._pool = ThreadPoolExecutor(REQUESTS)

    def ask(self, k: int) -> bytes:
        """Return the answer to request k, in the format of NumPy."""
        request = self._requests[k]
        headers = {"Content-Type": request.media, "Accept": "application/x-npy"}
        answer = self._http.post("/v1/sample", content=request.body, headers=headers)
        if answer.status_code != 200:
            raise RuntimeError(answer.text)
        return answer.content

    def one_by_one(self) -> list[bytes]:
        """Return the answers to all requests, sent one after the other."""
        return [self.ask(k) for k in range(REQUESTS)]

    def at_once(self) -> list[bytes]:
        """Return the answers to all requests, sent at once."""
        return list(self._pool.map(self.ask, range(REQUESTS)))

    def clock(self) -> float:
        """Return the processor time of the service so far, in seconds."""
        return sum(self._running.clocks().values())

    def calls(self) -> NDArray[np.float64]:
        """Return the network rows and the network calls so far."""
        text = self._http.get("/metrics").text
        pattern = r'pathline_batch_rows_(sum|count)\{model="[^"]+",operation="sample"\} (\S+)'
        counted = dict(re.findall(pattern, text))
        return np.array([float(counted.get("sum", 0)), float(counted.get("count", 0))])


@dataclass(frozen=True)
class Cost:
    """Processor seconds of a round, and network rows a call."""

    plain: float
    alone: float
    eight: float
    rows: tuple[float, float]


def spent(call: Callable[[], Any], clock: Callable[[], float]) -> tuple[Any, float]:
    """Return the result of a call and the seconds on a clock that it took."""
    before = clock()
    result = call()
    return result, clock() - before


def difference(a: Sequence[NDArray[Any]], b: Sequence[NDArray[Any]]) -> float:
    """Return the largest difference, relative to the largest number of each of the second."""
    return max(float(np.abs(x - y).max() / np.abs(y).max()) for x, y in zip(a, b, strict=True))


def measured(name: str, folder: Path, rounds: int) -> str:
    """Import a case, serve it, and return its line of the table."""
    repository = folder / "checkpoints"
    repository.mkdir()
    case = CASES[name](repository)
    path = next((repository / case.model).iterdir())
    with server("pathline", path, None, PATHLINE_ALLOW_PROGRAMS="true") as running:
        served = Served(case, running)
        alone = served.one_by_one()  # prepares shapes
        library = [case.draw(k) for k in range(REQUESTS)]
        costs = [_round(case, served, alone) for _ in range(rounds)]
    samples = [np.load(io.BytesIO(answer)) for answer in alone]
    exact = [case.draw(k, torch.float64) for k in range(REQUESTS)] if case.exact else None
    off = f"{difference(samples, library):.0e}"
    far = "" if exact is None else f"{difference(samples, exact):.0e}, {difference(library, exact):.0e}"
    rows = ", ".join(f"{statistics.median(each.rows[i] for each in costs):.1f}" for i in (0, 1))
    ratios = [statistics.median(getattr(each, part) / each.plain for each in costs) for part in ("alone", "eight")]
    each = [1e3 * statistics.median(getattr(c, part) for c in costs) / REQUESTS for part in ("plain", "alone", "eight")]
    print(name, *(f"{ms:.1f}" for ms in each), file=sys.stderr)
    size = f"{case.parameters / 1e6:.3g} M"
    parts = [name, case.source, size, case.lines, case.sampler, off, far, rows, *(f"{r:.2f}" for r in ratios)]
    return f"| {' | '.join(map(str, parts))} |"


def _round(case: Case, served: Served, alone: Sequence[bytes]) -> Cost:
    _, plain = spent(lambda: [case.draw(k) for k in range(REQUESTS)], time.process_time)
    costs, rows = [], []
    for send in (served.one_by_one, served.at_once):
        before = served.calls()
        answers, cost = spent(send, served.clock)
        if answers != list(alone):
            raise RuntimeError(f"{case.model}: bits depend on the other requests")
        counted = served.calls() - before
        costs.append(cost)
        rows.append(float(counted[0] / counted[1]))
    return Cost(plain, *costs, rows=(rows[0], rows[1]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure networks and print a table."""
    parser = argparse.ArgumentParser(prog="python -m studies.networks", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CASES, []], help="networks (default: all)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of each measurement (default: %(default)s)")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print(HEAD)
    for name in options.names or CASES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                print(measured(name, Path(folder), options.rounds), flush=True)
            except ModuleNotFoundError as error:
                print(f"{name} is left out: {error.name} is not installed", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
