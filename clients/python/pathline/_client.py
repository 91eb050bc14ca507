"""The blocking client. `_calls` defines what each call sends and reads; this module moves the bytes and waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from os import PathLike
from queue import SimpleQueue
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, TypeVar

import httpx
import numpy as np

from pathline._answers import Replayable
from pathline._bar import Follow
from pathline._bulk import BulkArguments, BulkResult, Counts, Job, begin, shown
from pathline._calls import Call, Do, Emit, Flow, Run, Wait, configured
from pathline._calls import headers as all_headers
from pathline._compare import CANDIDATES, Comparison, SolverLike, compare
from pathline._events import Event
from pathline._frontier import Frontier
from pathline._info import ModelInfo, ModelList, ServiceLoad, SolverInfo
from pathline._request import SampleOptions, SolverOptions, spelled_out
from pathline._response import Intake, Response, reading, sending
from pathline._results import DiagnoseResult, EncodeResult, LogProbResult, SampleResult
from pathline._retry import RetryPolicy
from pathline._route import Route, route_to
from pathline.errors import PathlineError

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

T = TypeVar("T")


class Client:
    """A blocking client; safe to share between threads. Use it in a ``with`` block, or call `close`.

    Args:
        base_url: URL of the service; by default ``PATHLINE_URL``, else ``http://127.0.0.1:8000``.
        api_key: Key of the service, sent as ``Authorization: Bearer``; by default ``PATHLINE_API_KEY``, else none.
        timeout: Seconds without network activity before giving up; sampling adds the request's own `timeout_s`.
        retry: When to send a request again; ``RetryPolicy(max_attempts=1)`` turns it off.
        headers: Sent with every request.
        transport: An httpx transport to use instead of sockets; proxies and certificates are then up to it.

    Raises:
        InvalidValue: The environment names a proxy or certificates that cannot be used.
        InvalidValue: The URL is not an http or https URL.
        InvalidValue: The key has characters that are not allowed in a header.
        TypeError: The URL or the key is not a string.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float = 10.0,
        retry: RetryPolicy | None = None,
        headers: Mapping[str, str] | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._calls = configured(base_url, timeout, retry)
        self._route = route_to(self._calls.url) if transport is None else Route()
        self._http = httpx.Client(
            base_url=self._calls.url,
            headers=all_headers(api_key, headers, self._calls.login),
            transport=self._route.transport() if transport is None else transport,
            trust_env=False,  # the route has read the environment already
        )

    def __repr__(self) -> str:
        return f"Client({self.base_url!r}{', closed' if self._http.is_closed else ''})"

    @property
    def base_url(self) -> str:
        """URL of the service."""
        return self._calls.url

    @spelled_out(SampleOptions)
    def sample(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> SampleResult:
        """Draw samples.

        Args:
            model: Name of the model.
            num_samples: How many; by default the rows of `x0`, else 256.
            progress: True draws a progress bar on stderr; a function is called with each `Progress`, which has the
                `share` of the work done and the `seconds_left`.
            **options: See `SampleOptions`: ``solver="rk4-20"``, or `solver`, `steps`, `rtol`, `atol` and so on
                separately; `seed`, `condition`, `guidance`, `save_at`, `timeout_s`.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError: An option is unknown, a count is not an integer, or JSON cannot represent a value.
            InvalidValue: The seed is out of range, a number is not finite, or the text of the solver is not
                understood; also a ValueError.
        """
        return self._run(self._calls.sample(model, num_samples, options, progress))

    def replay(
        self,
        answer: Replayable,
        *,
        force: bool = False,
        condition: Any = None,
        conditions: Mapping[str, Any] | None = None,
        negative: Mapping[str, Any] | None = None,
        x0: Any = None,
        timeout_s: float | None = None,
        priority: Literal["interactive", "bulk"] | None = None,
    ) -> SampleResult:
        """Reproduce the samples of an earlier response, bit for bit.

        Args:
            answer: The result, the document of a response (its samples may be missing), or the path of a .json or
                .npz file of either.
            force: Sample even if the bits cannot be promised; `SampleResult.digest_matches` says whether they match.
            condition, x0: As in the first call, if they were more than 64 numbers.
            conditions, negative: As in the first call, for a model with named conditions; ``{}`` if it gave none.
            timeout_s: Time limit in seconds, queueing included.
            priority: ``"interactive"`` or ``"bulk"``.

        Raises:
            ReplayDiffers: The bits cannot be promised here; its `differences` say why.
            PathlineError: See `pathline.errors`.
            TypeError, InvalidValue: As for `sample`.
        """
        given = {
            "force": force or None,
            "condition": condition,
            "conditions": conditions,
            "negative": negative,
            "x0": x0,
        }
        return self._run(self._calls.replay(answer, {**given, "timeout_s": timeout_s, "priority": priority}))

    @spelled_out(SampleOptions)
    def iter_samples(
        self,
        model: str,
        total: int,
        batch: int = 10_000,
        *,
        progress: bool | Follow | None = None,
        **options: Unpack[SampleOptions],
    ) -> Iterator[SampleResult]:
        """Draw `total` samples of one seed, page by page, holding one page in memory.

        The samples are those that one call of `sample` would give, whatever `batch` is.

        Args:
            model: Name of the model.
            total: How many samples in all.
            batch: How many at a time.
            progress: As for `sample`, for all pages together.
            **options: See `SampleOptions`; one `seed` serves all pages, conditions may have one value for each of the
                `total` samples, `x0` cannot be paged, and `error_control="batch"` needs one page.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError, ValueError: As for `sample`; raised by the call, not by the first page.
        """
        return self._drive(Run(self._calls.pages(model, total, batch, options, progress)))

    def bulk(
        self,
        model: str,
        total: int | None = None,
        *,
        to: str | PathLike[str],
        counts: Counts | None = None,
        format: Literal["npy", "parquet"] | None = None,  # noqa: A002 - as NumPy and pandas call it
        workers: int = 2,
        tries: int = 3,
        shard_rows: int | None = None,
        progress: bool | Follow | None = None,
        **options: Any,
    ) -> BulkResult:
        """Draw any number of samples into a folder, or resume the job in it.

        Row k of the job is sample ``first_index + k`` of the seed. The folder has the layout of
        ``python -m fleet sample``, so ``python -m fleet verify`` and ``export`` can read it. Finished shards are kept:
        after Ctrl-C, a crash or an error, repeat the call to make the rest. If the service is at capacity, the call
        waits.

        Args:
            model: Name of the model.
            total: Number of samples; required for a new job without `counts`.
            to: A new or empty folder, or the folder of the job.
            counts: Number of samples per condition: a mapping such as ``{7: 100}``, or pairs of condition and count.
            format: File format: ``"npy"`` (the default, samples only), or ``"parquet"``, which adds index, NFE, status
                and condition, and needs pyarrow.
            workers: Requests at the same time; two keep one service busy.
            tries: Attempts at a shard before giving up.
            shard_rows: Rows per file, a multiple of 64; by default, two minutes of work at most.
            progress: True draws a bar with the rate and the time left; a function is called with each `Progress`, the
                `fields` of which have ``rows``, ``total`` and ``rows_per_s``.
            **options: `solver`, `steps`, `rtol`, `atol`, `grid`, `start`, `controller`, `first_step`, `max_step`,
                `max_nfe`, `condition`, `conditions`, `negative`, `guidance`, `shape`, `decode`, `seed`, `first_index`
                and `version` as for `sample`; `timeout_s` applies to each request. Arrays in `conditions` and
                `negative` have one value for all samples, or one for each of the `total` samples.

        Raises:
            BulkConflict: The folder holds another job or something else, or the service's model has changed.
            BulkIncomplete: Shards were given up after `tries` tries; the others are done.
            OSError: The folder cannot be read or written.
            PathlineError: See `pathline.errors`.
            TypeError, InvalidValue: As for `sample`.
        """
        arguments = BulkArguments.of(model, total, counts, format, shard_rows, workers, tries, options)
        job = self._run(begin(self._calls, to, arguments))
        with shown(progress) as tell:
            job.follow(tell)
            self._work(job, workers, tries)
        return self._run(job.result())

    @spelled_out(SampleOptions)
    def stream(
        self, model: str, num_samples: int | None = None, **options: Unpack[SampleOptions]
    ) -> Generator[Event, None, None]:
        """Draw samples as a stream of events.

        The first event is `Started`, the last `Completed` with the result; between them come `Progress` and, for each
        time of `save_at`, a `State`. Leaving the loop early (`break`, then closing or dropping the iterator) closes
        the connection, and the service stops computing.

        Args:
            model: Name of the model.
            num_samples: As for `sample`.
            **options: See `SampleOptions`.

        Raises:
            PathlineError: See `pathline.errors`; `ProtocolError` if the connection breaks half-way. A stream that
                has begun is not retried.
            TypeError, ValueError: As for `sample`; raised by the call, not by the first event.
        """
        return self._drive(Run(self._calls.stream(model, num_samples, options)))

    @spelled_out(SolverOptions)
    def encode(
        self, model: str, samples: Any, *, decode: bool | None = None, **options: Unpack[SolverOptions]
    ) -> EncodeResult:
        """Find the noise behind data; ``sample(model, x0=result.x0)`` gives the data back.

        Args:
            model: Name of the model.
            samples: Data, shape (n, *data_shape), as `sample` returns them.
            decode: False if `samples` are states in the model's own coordinates.
            **options: See `SolverOptions`.

        Raises:
            PathlineError, TypeError, InvalidValue: As for `sample`.
        """
        return self._run(self._calls.encode(model, samples, decode, options))

    @spelled_out(SolverOptions)
    def log_prob(
        self,
        model: str,
        samples: Any,
        *,
        divergence: Literal["auto", "exact", "hutchinson"] | None = None,
        probes: int | None = None,
        seed: SupportsIndex | None = None,
        decode: bool | None = None,
        **options: Unpack[SolverOptions],
    ) -> LogProbResult:
        """Compute the log-density of data under a model.

        Args:
            model: Name of the model.
            samples: Data, shape (n, *data_shape), as `sample` returns them.
            divergence: ``"exact"``, ``"hutchinson"`` (estimated with Rademacher probes), or ``"auto"``: exact for
                samples of up to 16 numbers.
            probes: Number of estimates to average; with two or more, the result has a standard error.
            seed: Seed of the probes; drawn by the client if omitted, so that a retry is the same request.
            decode: False if `samples` are states in the model's own coordinates.
            **options: See `SolverOptions`.

        Raises:
            PathlineError, TypeError, InvalidValue: As for `sample`.
        """
        own = {"samples": samples, "divergence": divergence, "probes": probes, "seed": seed, "decode": decode}
        return self._run(self._calls.log_prob(model, own, options))

    @spelled_out(SolverOptions)
    def diagnose(
        self,
        model: str,
        num_samples: int | None = None,
        *,
        times: Sequence[float] | np.ndarray | None = None,
        seed: SupportsIndex | None = None,
        first_index: int | None = None,
        x0: Any = None,
        **options: Unpack[SolverOptions],
    ) -> DiagnoseResult:
        """Compute the Jacobian of the velocity along paths from noise to data.

        Args:
            model: Name of the model.
            num_samples: How many samples; by default the rows of `x0`, else 16.
            times: Ascending times in [0, 1]; by default 0, 0.1, ..., 1.
            seed: Seed of the starting noise; drawn by the client if omitted.
            first_index: Index of the first sample in the seed's stream.
            x0: Start states, shape (n, *event_shape), in place of noise.
            **options: See `SolverOptions`; the default is rk4 with 20 steps.

        Raises:
            PathlineError, TypeError, InvalidValue: As for `sample`.
        """
        own = {"num_samples": num_samples, "times": times, "seed": seed, "first_index": first_index, "x0": x0}
        return self._run(self._calls.diagnose(model, own, options))

    def models(self) -> ModelList:
        """Return the models that the service offers, and the entries of its repository that are not models."""
        return self._run(self._calls.models())

    def model(self, name: str) -> ModelInfo:
        """Return the service's description of one model."""
        return self._run(self._calls.model(name))

    def frontier(self, name: str, version: int | None = None) -> Frontier:
        """Return the cost of each measured solver on a model, and its distance from the exact end of the path.

        Args:
            name: Name of the model.
            version: Its version; by default the one that answers.

        Raises:
            NotFound: It has not been measured; the message names the command that does so.
            PathlineError: See `pathline.errors`.
        """
        return self._run(self._calls.frontier(name, version))

    def load(self) -> ServiceLoad:
        """Return how much work the service still has to do."""
        return self._run(self._calls.load())

    def solvers(self) -> list[SolverInfo]:
        """Return the solvers that the service offers."""
        return self._run(self._calls.solvers())

    @spelled_out(SampleOptions)
    def compare(
        self,
        model: str,
        solvers: Sequence[SolverLike] = CANDIDATES,
        num_samples: int = 256,
        *,
        reference: SolverLike | None = None,
        progress: bool | Callable[[int, int], None] | None = None,
        **options: Unpack[SampleOptions],
    ) -> Comparison:
        """Run several solvers on the same noise and compare their costs and endpoints.

        Args:
            model: Name of the model.
            solvers: Each a text such as ``"rk4-20"``, ``"ab3-12/shift(3)"`` or ``"dopri5@1e-6"``, or a mapping of
                options of `sample`.
            num_samples: How many samples each draws.
            reference: A high-accuracy solver, such as ``"dopri5@1e-7"``, that all are scored against;
                `Comparison.recommend` then says which solver the model needs.
            progress: True draws a progress bar on stderr; a function is called with the number of solvers done and
                their total.
            **options: See `SampleOptions`; they apply to all solvers, except that `max_step` applies only to those
                under error control, and `steps` (20 by default) only to fixed-step solvers given by their bare name.

        Raises:
            PathlineError: See `pathline.errors`.
            TypeError, ValueError: An option or the description of a solver is not allowed.
        """
        return self._run(compare(self._calls, model, solvers, num_samples, options, reference, progress))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _work(self, job: Job, workers: int, tries: int) -> None:
        """Run a job's workers in threads; if waiting for them is interrupted, they stop."""
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def work() -> None:
            try:
                self._run(job.worker(tries))
            except BaseException as error:
                job.stop()
                ended.put(error)
            else:
                ended.put(None)

        threads = [threading.Thread(target=work, name="pathline-bulk", daemon=True) for _ in range(workers)]
        for thread in threads:
            thread.start()
        try:
            found = [ended.get() for _ in threads]
        except BaseException:  # Ctrl-C: the threads stop after the page that they are waiting for
            job.stop()
            raise
        for error in found:
            if error is not None:
                raise error

    def _run(self, flow: Flow[T]) -> T:
        run = Run(flow)
        for _ in self._drive(run):
            pass
        return run.result

    def _drive(self, run: Run[Any]) -> Generator[Any, None, None]:
        """Perform the steps of a flow and yield the values that it emits."""
        outcome: Any = None
        opened: tuple[httpx.Response, Iterator[bytes]] | None = None
        try:
            while (step := run.advance(outcome)) is not None:
                outcome = None
                if isinstance(step, Emit):
                    yield step.value
                    continue
                try:
                    if isinstance(step, Wait):
                        time.sleep(step.seconds)
                    elif isinstance(step, Do):
                        outcome = step.call()
                    elif isinstance(step, Call):
                        if opened is not None:  # a stream that is given up for another attempt
                            opened[0].close()
                        opened, response = None, self._send(step)
                        intake = Intake.of(response, step.timeout.read)
                        if step.stream and response.is_success:
                            opened = response, map(intake.add, response.iter_bytes())
                            outcome = Response.of(response, b"", self._route)
                        else:
                            outcome = self._read(response, intake)
                    elif opened is not None:
                        with reading(self.base_url):
                            outcome = next(opened[1], None)
                except PathlineError as error:
                    outcome = error
        finally:
            if opened is not None:
                opened[0].close()
            run.close()

    def _send(self, call: Call) -> httpx.Response:
        request = self._http.build_request(
            call.method, call.path, headers=call.headers, content=call.content, timeout=call.timeout
        )
        with sending(self.base_url, self._route):
            return self._http.send(request, stream=True)

    def _read(self, response: httpx.Response, intake: Intake) -> Response:
        try:
            with reading(self.base_url):
                return Response.of(response, b"".join(map(intake.add, response.iter_bytes())), self._route)
        finally:
            response.close()
