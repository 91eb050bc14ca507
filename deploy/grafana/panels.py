"""Panels and variables of the dashboard as data, each panel with its PromQL; `generate.py` turns them into JSON."""

from dataclasses import dataclass

RATE = "$__rate_interval"  # Grafana replaces this with a window that fits the scrape interval

VARIABLES = {
    "instance": "label_values(pathline_build_info, instance)",
    "model": "label_values(pathline_model_loaded, model)",
    "solver": "label_values(pathline_nfe_count, solver)",
}
"""Variables at the top of the dashboard, each with the query for its values; a panel filters by those that apply."""

LABELS: dict[str, tuple[str, ...]] = {
    "pathline_queue_seconds": ("model",),
    "pathline_solve_seconds": ("model",),
    "pathline_network_seconds": ("model",),
    "pathline_nfe": ("model", "solver"),
    "pathline_step_size": ("solver",),
    "pathline_steps": ("solver",),
    "pathline_batch_rows": ("model",),
    "pathline_batch_requests": ("model",),
    "pathline_batch_solvers": ("model",),
    "pathline_model_loaded": ("model",),
}
"""Variables that filter each metric, besides the instance, which filters all of them."""


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: Short name.
        says: Description shown to the reader.
        queries: (PromQL, legend) pairs; for a heatmap, one pair with the label of the buckets as its legend.
        unit: Grafana's name of the unit.
        kind: `lines`, `stacked`, `heatmap` or `number`.
        width: Number of columns; a row has 24.
    """

    title: str
    says: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "lines"
    width: int = 8


def _select(metric: str, where: str = "") -> str:
    """Return a metric filtered by the variables that apply to it."""
    name = metric
    for tail in ("_total", "_bucket", "_sum", "_count"):
        name = name.removesuffix(tail)
    filters = [f'{label}=~"${label}"' for label in ("instance", *LABELS.get(name, ()))]
    return f"{metric}{{{', '.join(filters + ([where] if where else []))}}}"


def _rate(metric: str, by: str = "", where: str = "") -> str:
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({_select(metric, where)}[{RATE}]))"


def _quantile(share: float, metric: str, by: str = "", where: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, {_rate(f'{metric}_bucket', labels, where)})"


def _mean(metric: str, by: str = "") -> str:
    return f"{_rate(f'{metric}_sum', by)} / {_rate(f'{metric}_count', by)}"


_SAMPLE = 'route=~"/v1/sample|/sample"'
_REJECTED = _rate("pathline_steps_total", "solver", 'result="rejected"')
_BAD = 'outcome=~"4..|5..|client_gone"'

ROWS: dict[str, tuple[Panel, ...]] = {
    "Requests": (
        Panel(
            "Served models",
            "loaded models and versions",
            ((f"count({_select('pathline_model_loaded')})", ""),),
            "short",
            "number",
            4,
        ),
        Panel(
            "Requests",
            "solved requests per second by model",
            ((_rate("pathline_solve_seconds_count", "model"), "{{model}}"),),
            "reqps",
            "stacked",
            8,
        ),
        Panel(
            "Failed requests",
            "requests that failed, by status; client_gone means that the client left before the response",
            ((_rate("pathline_requests_total", "outcome", _BAD), "{{outcome}}"),),
            "reqps",
            "stacked",
            6,
        ),
        Panel(
            "Errors by type",
            "error responses by problem type; /problems/TYPE on the service explains each",
            ((_rate("pathline_errors_total", "type"), "{{type}}"),),
            "reqps",
            "stacked",
            6,
        ),
    ),
    "Latency": (
        Panel(
            "Latency of sampling",
            "total time of a request, excluding the network to the client",
            tuple(
                (_quantile(share, "pathline_request_seconds", where=_SAMPLE), f"p{share * 100:g}")
                for share in (0.5, 0.9, 0.99)
            ),
            "s",
        ),
        Panel(
            "Where the time goes",
            "mean time by stage: waiting, solving, and network calls while solving",
            tuple((_mean(f"pathline_{part}_seconds"), part) for part in ("queue", "solve", "network")),
            "s",
        ),
        Panel(
            "Queue",
            "requests waiting, requests in the engine, samples being solved",
            (
                (f"sum({_select('pathline_queue_depth')})", "waiting"),
                (f"sum({_select('pathline_active_jobs')})", "requests"),
                (f"sum({_select('pathline_active_lanes')})", "samples"),
            ),
        ),
    ),
    "Solvers": (
        Panel(
            "NFE by solver", "mean network evaluations of a sample", ((_mean("pathline_nfe", "solver"), "{{solver}}"),)
        ),
        Panel(
            "Step sizes",
            "accepted steps of adaptive solvers",
            ((_rate("pathline_step_size_bucket", "le"), "{{le}}"),),
            "short",
            "heatmap",
        ),
        Panel(
            "Rejected steps",
            "share of attempted steps that error control rejected",
            (
                (
                    f"{_REJECTED} / {_rate('pathline_steps_total', 'solver')}",
                    "{{solver}}",
                ),
            ),
            "percentunit",
        ),
    ),
    "Batching": (
        Panel(
            "Rows in a network call",
            "how full the network is",
            tuple(
                (_quantile(share, "pathline_batch_rows", "model"), f"{{{{model}}}} p{share * 100:g}")
                for share in (0.5, 0.95)
            ),
            width=6,
        ),
        Panel(
            "Requests in a network call",
            "how many requests share one call",
            ((_mean("pathline_batch_requests", "model"), "{{model}}"),),
            width=6,
        ),
        Panel(
            "Solvers in a network call",
            "how many different solvers share one call",
            ((_mean("pathline_batch_solvers", "model"), "{{model}}"),),
            width=6,
        ),
        Panel(
            "Wasted evaluations",
            "evaluations per second spent on samples that were then cancelled",
            ((_rate("pathline_cancelled_nfe_total"), "cancelled"),),
            width=6,
        ),
    ),
    "Process": (
        Panel(
            "CPU",
            "processor cores in use",
            ((_rate("process_cpu_seconds_total", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Memory",
            "resident memory of the process, and the part of it reserved for requests in progress",
            (
                (f"sum by (instance) ({_select('process_resident_memory_bytes')})", "{{instance}}"),
                (f"sum by (instance) ({_select('pathline_job_bytes')})", "{{instance}} requests"),
            ),
            "bytes",
        ),
        Panel(
            "Versions",
            "instances by version of the service and of torch",
            (
                (
                    f"count by (version, torch) ({_select('pathline_build_info')})",
                    "{{version}}, torch {{torch}}",
                ),
            ),
        ),
    ),
}


def expressions() -> list[str]:
    """Return every PromQL expression of the dashboard."""
    return [query for panels in ROWS.values() for panel in panels for query, _ in panel.queries]


def resolved(query: str, window: str = "5m") -> str:
    """Return a query as Grafana sends it when every variable is set to All."""
    for name in VARIABLES:
        query = query.replace(f"${name}", ".*")
    return query.replace(RATE, window)
