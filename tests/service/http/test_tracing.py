"""Traces: one server span per request, with its stages; nothing if traces are off."""

import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.datastructures import Headers

from engine.job import EngineFailed
from service.app import create_app
from service.http import tracing
from service.http.context import Context
from service.settings import Settings, StartError

pytestmark = pytest.mark.anyio

ASK = {"model": "moons", "num_samples": 2, "solver": "rk4", "steps": 3}


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
async def http(
    repository: Path, engine: Any, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[httpx.AsyncClient]:
    """A client; the exporter has the spans once the application has ended."""
    monkeypatch.setattr(tracing, "exporting_to", lambda endpoint: tracing.Traces(exporter))
    app = create_app(Settings(models_dir=repository, watch_s=0, otel_endpoint="http://collector:4318"), engine)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://x") as client:
        app.state.service.start()
        yield client
        app.state.service.stop()
        traces: Any = app.door.traces
        traces.close()


async def _spans(http: httpx.AsyncClient, exporter: InMemorySpanExporter) -> dict[str, Any]:
    app: Any = http._transport.app  # type: ignore[attr-defined]
    app.door.traces._provider.force_flush()
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_stages_of_a_sample(http: httpx.AsyncClient, exporter: InMemorySpanExporter) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    await http.post("/v1/sample", json=ASK, headers={"traceparent": f"00-{trace}-{parent}-01", "X-Request-ID": "r1"})
    spans = await _spans(http, exporter)
    assert set(spans) == {"POST /v1/sample", "queue", "solve", "encode"}
    server = spans["POST /v1/sample"]
    assert (server.kind, f"{server.context.trace_id:032x}") == (SpanKind.SERVER, trace)
    assert f"{server.parent.span_id:016x}" == parent
    assert server.attributes["pathline.model"] == "moons"
    assert server.attributes["pathline.solver"] == "rk4"
    assert server.attributes["pathline.request_id"] == "r1"
    assert server.attributes["http.response.status_code"] == 200
    for name in ("queue", "solve", "encode"):
        assert spans[name].parent.span_id == server.context.span_id
        assert spans[name].context.trace_id == server.context.trace_id
    assert spans["solve"].end_time - spans["solve"].start_time <= 10_000_001
    assert spans["solve"].end_time <= spans["encode"].end_time <= server.end_time


async def test_a_trace_of_its_own(http: httpx.AsyncClient, exporter: InMemorySpanExporter) -> None:
    await http.get("/v1/models/none", headers={"traceparent": "garbage"})
    server = (await _spans(http, exporter))["GET /v1/models/{name}"]
    assert server.parent is None
    assert server.attributes["http.response.status_code"] == 404
    assert server.status.status_code is StatusCode.UNSET


async def test_failures(http: httpx.AsyncClient, exporter: InMemorySpanExporter, engine: Any) -> None:
    engine.fail = EngineFailed("out of memory")
    await http.post("/v1/sample", json=ASK)
    assert (await _spans(http, exporter))["POST /v1/sample"].status.status_code is StatusCode.ERROR


def test_the_exporter_that_is_not_installed(repository: Path, engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(StartError, match=r"PATHLINE_OTEL_ENDPOINT is set, but .* pip install -e '\.\[otel\]'"):
        create_app(Settings(models_dir=repository, watch_s=0, otel_endpoint="http://collector:4318"), engine)


async def test_the_state_of_a_trace_is_kept(http: httpx.AsyncClient, exporter: InMemorySpanExporter) -> None:
    parent = ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    await http.get("/livez", headers=[parent, ("tracestate", "congo=t61rcWkgMzE"), ("tracestate", "rojo=00f067aa")])
    [span] = (await _spans(http, exporter)).values()
    assert span.context.trace_state.to_header() == "congo=t61rcWkgMzE,rojo=00f067aa"


@pytest.mark.parametrize(
    ("variables", "name"),
    [
        ({}, "pathline"),
        ({"OTEL_SERVICE_NAME": "lab"}, "lab"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=lab,deployment.environment=test"}, "lab"),
    ],
)
def test_the_name_of_the_service(
    exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], name: str
) -> None:
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    traces = tracing.Traces(exporter)
    assert traces._provider.resource.attributes["service.name"] == name
    assert "telemetry.sdk.name" in traces._provider.resource.attributes
    traces.close()


def test_a_collector_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_LAST_S", 0.1)
    entered, go = threading.Event(), threading.Event()

    class Silent(InMemorySpanExporter):
        def export(self, spans: Any) -> Any:
            entered.set()
            assert go.wait(60)
            return super().export(spans)

    exporter = Silent()
    traces = tracing.Traces(exporter)
    traces.record(Headers(), "GET", "/livez", Context({"type": "http", "headers": []}), "200")
    traces.close()
    assert entered.wait(60)
    assert not exporter.get_finished_spans()  # it has returned before the export has
    go.set()
    [last] = [thread for thread in threading.enumerate() if thread.name == "pathline-traces"]
    last.join(60)
    assert len(exporter.get_finished_spans()) == 1
