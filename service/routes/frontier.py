"""``/v1/models/{name}/frontier``: GET shows the stored measurements of a model, POST measures solvers now.

A fresh measurement is a stream of events: start, reference, then a point for each solver; last completed or error.

    POST -> jobs of the engine, one solver after another from the same noise -> points -> the choice

The first job solves for the reference, as tightly as the model's arithmetic allows. ``completed`` has one table of the
stored and the fresh points, and one verdict. At the time limit the verdict rests on what was measured by then. When the
client disconnects, the running job is cancelled.
"""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
from fastapi import Query, Request, Response
from pydantic import Field

import solvers
from engine.job import Job, JobResult, Overloaded, TooLate, TooSlow
from selection.candidates import CLOSE, candidates
from selection.choice import USUAL_ERROR, BudgetLimits, Evidence, NoneFits, choose, frontier_of, measured
from selection.error import LEAST_SAMPLES, Ends, NoErrors, Point, arrivals
from selection.frontier import Curve, pareto, percent
from service import examples
from service.errors import REFUSALS, Kind, ProblemError, check_limit, invalid
from service.http.context import Context
from service.http.events import MEDIA_TYPE, EventStream, event, failed
from service.openapi import CATALOGUE, SOLVING_PROBLEMS, ModelName, Router, requested, shown
from service.registry.version import ModelVersion
from service.requests import budget, pipeline
from service.requests.conditions import sized
from service.requests.schemas import Background, BudgetBody, Count, Drawn, NoiseScale, Subject
from service.requests.sizes import doubles_bytes, kept_steps, lanes_bytes, logged_beyond
from service.requests.solver import refuse_average
from service.requests.validation import Validated, job_of
from service.responses.arrays import ENCODERS, JSON, Encoder
from service.responses.schemas import FrontierBody
from service.settings import Settings
from service.state import service_of
from solvers import SolverSpec
from solvers.errors import SolverError
from solvers.plan import Plan

router = Router(tags=[CATALOGUE])
measuring = Router(tags=[CATALOGUE], route_class=pipeline.BodyRoute)

CANDIDATES = "candidates"
SAMPLES, MAX_SOLVERS = 512, 256
CLOSER = 0.1
"""Share of the wanted error below which nothing more is tried: the table then also shows what a better one costs."""

FrontierVersion = Annotated[
    int | None,
    Query(
        ge=1, description="version of the model; the one that answers if omitted", openapi_examples={"1": {"value": 1}}
    ),
]


class FrontierRequest(Subject, Drawn):
    """Body of ``POST /v1/models/{name}/frontier``: the solvers to measure, on which paths, and what is wanted."""

    solvers: Annotated[list[str], Field(min_length=1, max_length=MAX_SOLVERS)] = Field(
        default=[CANDIDATES],
        description="solvers as text, such as rk4-20; the word candidates stands for all that are usually tried, the "
        "cheapest first",
    )
    num_samples: Count = Field(default=SAMPLES, description=f"number of samples, at least {LEAST_SAMPLES}")
    noise_scale: NoiseScale = 1.0
    priority: Background = "bulk"
    per_sample: bool = False
    """list the endpoint error of each sample in the points, too"""
    budget: BudgetBody = Field(
        default=BudgetBody(max_error=USUAL_ERROR),
        description=f"what the verdict is for: an error of {percent(USUAL_ERROR)} if omitted",
    )


@router.read(
    "/v1/models/{name}/frontier",
    "Show cost and error of a model's solvers",
    *(Kind.UNKNOWN_MODEL, Kind.UNKNOWN_VERSION, Kind.NO_FRONTIER, Kind.INVALID, Kind.BROKEN_MODEL),
)
async def frontier(request: Request, name: ModelName, version: FrontierVersion = None) -> FrontierBody:
    """Show the frontier of a model: the cost and the endpoint error of each measured solver."""
    service = service_of(request)
    with await service.lease(name, version) as model:
        if never := budget.never_measured(model):
            raise ProblemError(Kind.NO_FRONTIER, never)
        stored, fault = model.frontier_file.now()
        if stored is None:
            why = f"cannot be used: {fault}" if fault else "was not measured"
            command = budget.measured_by(model, service.settings)
            detail = f"the frontier of model {model.name!r} version {model.version} {why}; measure it with: {command}"
            raise ProblemError(Kind.NO_FRONTIER, detail)
        curves: list[Any] = []
        for curve in stored.curves:
            best = {point.solver for point in pareto(curve.points)}
            points = [point.model_dump() | {"best": point.solver in best} for point in curve.points]
            curves.append(curve.model_dump(exclude={"points"}) | {"points": points})
        return {
            "model": model.name,
            "version": model.version,
            "checkpoint": model.digest,
            "reference": stored.reference,
            "conditions": stored.conditions,
            "curves": curves,
        }


_REQUESTS = {"measure": {"solvers": ["rk4-4", "ab3-12"], "num_samples": 128, "seed": 0, "budget": {"max_error": 0.02}}}


@measuring.post(
    "/v1/models/{name}/frontier",
    summary="Measure solvers on a model, and say which one it needs",
    response_class=Response,
    responses={
        **SOLVING_PROBLEMS,
        200: {
            "description": "Server-sent events: start, reference, a point for each solver, finally completed or error",
            "content": {MEDIA_TYPE: {"schema": {"type": "string"}} | shown({"measure": examples.MEASURED})},
        },
    },
)
async def measure_frontier(
    http: Context, name: ModelName, request: Annotated[FrontierRequest, requested(_REQUESTS)]
) -> Response:
    """Measure solvers from the same noise, one after another, and choose among these and the stored measurements."""
    valid = await pipeline.make_job(http, request, _validate, name, ENCODERS[JSON])
    future = http.service.engine.submit(valid.job, asyncio.get_running_loop().create_future())
    measurement = _Measurement(http, request, valid.model, valid.job, future)
    return EventStream(measurement.events(), measurement.cancel)


def _validate(
    request: FrontierRequest, model: ModelVersion, settings: Settings, encoder: Encoder, http: Context
) -> Validated:
    """Check a request, reserve its memory and make the job of the reference; errors as in `validate_sample`."""
    n = request.num_samples
    check_limit("num_samples", n, settings.max_samples)
    if n < LEAST_SAMPLES:
        raise invalid(
            "num_samples", f"num_samples = {n} is too few: the interval of p95 needs at least {LEAST_SAMPLES} samples"
        )
    refuse_average(model, "a frontier measures how well solvers follow")
    try:
        for _ in _named_plans(request, model, settings):
            pass
    except SolverError as error:
        raise invalid("solvers", f"solvers: {error}") from None
    checked, model = sized(request, model, n)
    floor = solvers.tolerance_floor(model.compute)
    tight = SolverSpec(rtol=floor, atol=floor, controller="i", max_nfe=settings.max_nfe)
    plan = solvers.compile(tight, model.dtype, None, model.compute)
    memory = lanes_bytes(model, n, math.prod(model.event_shape), checked, plan=plan)
    memory += 2 * doubles_bytes(n, model.event_shape)
    job = job_of(
        http, request, model, plan, checked, memory, num_samples=n, seed=request.seed,
        first_index=request.first_index, noise_scale=request.noise_scale,
    )  # fmt: skip
    return Validated(model, job, encoder)


def _named_plans(request: FrontierRequest, model: ModelVersion, settings: Settings) -> Iterator[tuple[str, Plan]]:
    """Yield the solvers that a request names, each compiled in its turn; a SolverError as in `_plan`."""
    specs = [SolverSpec.parse(text) for text in request.solvers if text != CANDIDATES]
    for text, spec in {str(spec): spec for spec in specs}.items():
        yield text, _plan(spec, model, settings)


def _plan(spec: SolverSpec, model: ModelVersion, settings: Settings) -> Plan:
    """Compile a solver; a SolverError if it is not for this model, or over a limit of this service."""
    if (spec.steps or 0) > settings.max_steps:
        raise SolverError("steps", f"{spec} is over the limit of {settings.max_steps} steps of this service")
    if spec.noisy:
        raise SolverError("solver", f"{spec} is stochastic: the distance of its ends from those of the ODE is no error")
    limit = min(spec.max_nfe, settings.max_nfe)
    return solvers.compile(replace(spec, max_nfe=limit), model.dtype, model.plans, model.compute)


@dataclass
class _Measurement:
    """One measurement under way.

    Attributes:
        reference: the job of the reference, which all others resemble.
        running: the result of the job that the engine has now, at first that of the reference.
        points, worst: of each solver measured, its point and the index of its worst sample.
    """

    http: Context
    request: FrontierRequest
    model: ModelVersion
    reference: Job
    running: asyncio.Future[JobResult]
    points: dict[str, Point] = field(default_factory=dict)
    worst: dict[str, int] = field(default_factory=dict)
    complete: bool = True
    spread: float = 0.0

    async def events(self) -> AsyncGenerator[bytes | memoryview]:
        """Yield the events; the last is completed or error."""
        job, model, settings = self.reference, self.model, self.http.service.settings
        stored, why_none = budget.stored(self.request, model, settings)
        spec = job.plan.spec
        start = {
            "model": model.name,
            "version": model.version,
            "checkpoint": model.digest,
            "seed": job.seed,
            "first_index": job.first_index,
            "num_samples": job.num_samples,
            "reference": f"{spec.solver}@{spec.rtol:g}",
            "stored": None if stored is None else _facts(stored),
            "stored_fault": why_none,
        }
        yield event("start", start)
        try:
            result = await self._result(job)
            ends = Ends.of(arrivals(result.x, result.status))
            self.spread = ends.spread
            solved = {"solver": start["reference"], "nfe": int(result.nfe.max()), "spread": self.spread}
            yield event("reference", solved)
            async for point in self._measure(ends):
                yield event("point", point)
            yield event("completed", self._verdict(stored))
        except NoErrors as error:
            yield failed(self.http, invalid("num_samples", str(error)))
        except (ProblemError, *REFUSALS) as error:
            yield failed(self.http, error)

    async def _measure(self, ends: Ends) -> AsyncIterator[dict[str, Any]]:
        """Solve with one solver after another, and yield its point; stop at the time limit."""
        hold, n = self.http.hold, self.reference.num_samples
        assert hold is not None  # noqa: S101  (that of the reference)
        solvers_left = self._solvers()
        while (solver := await asyncio.to_thread(next, solvers_left, None)) is not None:  # some take long to compile
            text, plan = solver
            logged = logged_beyond(hold, n * kept_steps(plan, "none"))
            job = replace(self.reference, plan=plan, follows=True, on_logged=logged)
            try:
                self.running = await self._submitted(job)
                result = await self._result(job)
            except TooSlow:  # this solver alone would not be done in time; cheaper ones may still be
                self.complete = False
                continue
            except TooLate:
                self.complete = False
                return
            arrived = arrivals(result.x, result.status)
            errors = await asyncio.to_thread(ends.errors, arrived)
            point = ends.point(text, arrived, result.nfe)
            if point is None:
                yield {
                    "solver": text, "nfe": float(result.nfe.mean()), "nfe_most": int(result.nfe.max()),
                    "failed": int(np.isinf(errors).sum()), "p95_high": None,
                }  # fmt: skip
                continue
            self.points[text] = point
            self.worst[text] = int(job.first_index + np.where(np.isfinite(errors), errors, -1.0).argmax())
            document = point.model_dump() | {"worst_index": self.worst[text]}
            document |= {"solve_s": result.solve_s, "queue_s": result.queue_s}
            if self.request.per_sample:
                document["errors"] = [float(e) if np.isfinite(e) else None for e in errors]
            yield document

    def _solvers(self) -> Iterator[tuple[str, Plan]]:
        """Yield the solvers to measure: those named, then the candidates of this service, if they are asked for."""
        model, settings, max_error = self.model, self.http.service.settings, self.request.budget.max_error
        yield from _named_plans(self.request, model, settings)
        if CANDIDATES not in self.request.solvers:
            return
        close = CLOSE if max_error is None else max(CLOSE, CLOSER * max_error)
        tuned = model.plans.texts if model.plans else ()
        for text in candidates(self.points, model.compute, tuned, close):
            if text in self.points:
                continue
            try:
                yield text, _plan(SolverSpec.parse(text), model, settings)
            except SolverError:  # not for this dtype or span, or over a limit
                continue

    async def _submitted(self, job: Job) -> asyncio.Future[JobResult]:
        """Submit a job, after waiting for its place under load."""
        while True:
            try:
                return self.http.service.engine.submit(job, asyncio.get_running_loop().create_future())
            except Overloaded as error:
                if self.http.deadline - time.monotonic() < error.retry_after_s:
                    raise TooLate from None
                await asyncio.sleep(error.retry_after_s)

    async def _result(self, job: Job) -> JobResult:
        """Wait for the running job, and count it."""
        try:
            async with asyncio.timeout(pipeline.patience(self.http, job)):
                result = await asyncio.shield(self.running)  # `cancel` is to tell the engine
        except TimeoutError:
            self.cancel()
            raise TooLate from None
        self.http.solver = job.plan.name
        pipeline.count(self.http, job, result)
        return result

    def cancel(self) -> None:
        """Cancel the running job."""
        pipeline.abandon(self.http, self.running)

    def _verdict(self, stored: Evidence | None) -> dict[str, Any]:
        """Return one table of all measurements, and the choice among them."""
        request, model = self.request, self.model
        evidence = [] if stored is None else [stored]
        if self.points:
            curve = Curve(
                samples=self.reference.num_samples, seed=self.reference.seed, spread=self.spread,
                complete=self.complete, points=tuple(self.points.values()),
            )  # fmt: skip
            conditions = "" if model.card.request_conditions is None else "the conditions of this request"
            evidence.append(Evidence(curve, stored=False, conditions=conditions))

        def ms(point: Point) -> float:
            return 1000 * budget.seconds(point, request, request.num_samples, model)

        best = {point.solver for point in frontier_of(evidence)}
        rows = [
            {**point.model_dump(), **_facts(source), "ms": ms(point)}
            | ({} if source.stored else {"worst_index": self.worst[point.solver]})
            | {"best": point.solver in best}
            for point, source in measured(evidence)
        ]
        try:
            choice = choose(evidence, BudgetLimits(**request.budget.model_dump()), ms)[0]
            chosen, verdict = choice.document(), choice.text
        except NoneFits as error:
            chosen, verdict = None, str(error)
        return {
            "points": rows,
            "complete": self.complete,
            "budget": request.budget.model_dump(exclude_none=True),
            "choice": chosen,
            "verdict": verdict,
            "tuned": budget.tuning(evidence, model, self.http.service.settings),
        }


def _facts(source: Evidence) -> dict[str, Any]:
    """Return what a measurement rests on."""
    facts = {"samples": source.curve.samples, "seed": source.curve.seed, "conditions": source.conditions}
    return facts | {"stored": source.stored, "own_conditions": source.own}
