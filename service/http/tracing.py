"""OpenTelemetry traces: one server span for each request, with child spans `queue`, `solve` and `encode`.

Spans are made after the response, from times that are measured anyway. Without PATHLINE_OTEL_ENDPOINT neither this
module nor OpenTelemetry is imported. opentelemetry-instrumentation-asgi (0.66b2) is no replacement: its server span
alone was measured at 90 us of CPU, while these four spans take 100 us, and the child spans would still be made here.
"""

import threading
import time
from typing import Any

from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from starlette.datastructures import Headers

from service.http.context import Context

_STAGES = ("queue", "solve", "encode")
_LAST_S = 2.0  # for the last export, whether or not a collector listens
_UNNAMED = "unknown_service"


class Traces:
    """Makes the spans of answered requests and exports them in batches, on another thread."""

    def __init__(self, exporter: SpanExporter) -> None:
        resource = Resource.create()  # with OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
        if str(resource.attributes[SERVICE_NAME]).startswith(_UNNAMED):
            resource = resource.merge(Resource({SERVICE_NAME: "pathline"}))
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("pathline")
        self._propagator = TraceContextTextMapPropagator()

    def record(self, headers: Headers, method: str, route: str, context: Context, outcome: str) -> None:
        """Make the spans of one request.

        Args:
            headers: of the request; its ``traceparent`` becomes the parent, and its ``tracestate`` is kept.
            method, route: of the request; the route is a template.
            context: its times, model and solver.
            outcome: the status code, or `client_gone`.
        """
        end = time.time_ns()
        begin = end - round(context.elapsed() * 1e9)
        attributes: dict[str, Any] = {"http.request.method": method, "http.route": route}
        attributes |= {"pathline.request_id": context.request_id, "pathline.outcome": outcome}
        if context.model:
            attributes |= {"pathline.model": context.model, "pathline.solver": context.solver}
        if outcome.isdigit():
            attributes["http.response.status_code"] = int(outcome)
        parent = self._propagator.extract({name: ", ".join(headers.getlist(name)) for name in self._propagator.fields})
        name = f"{method} {route}"
        span = self._tracer.start_span(name, parent, SpanKind.SERVER, attributes=attributes, start_time=begin)
        inside, at = set_span_in_context(span, parent), begin
        if "queue" in context.timings:  # the stages follow one another and end with the response
            at = end - round(sum(context.timings.get(stage, 0.0) for stage in _STAGES) * 1e9)
        for stage in _STAGES:
            if stage in context.timings:
                stop = at + round(context.timings[stage] * 1e9)
                self._tracer.start_span(stage, inside, start_time=max(begin, at)).end(stop)
                at = stop
        if outcome.startswith("5"):
            span.set_status(Status(StatusCode.ERROR))
        span.end(end)

    def close(self) -> None:
        """Export the remaining spans, and stop the thread; a collector that does not answer is not waited for."""
        last = threading.Thread(target=self._provider.shutdown, name="pathline-traces", daemon=True)
        last.start()
        last.join(_LAST_S)


def exporting_to(endpoint: str) -> Traces:
    """Return traces that are exported to a collector.

    Args:
        endpoint: Its address for OTLP over HTTP, without ``/v1/traces``.

    Raises:
        ImportError: The exporter is not installed.
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return Traces(OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces"))
