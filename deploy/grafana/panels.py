"""What the dashboard shows: panels as data, each with its PromQL. `generate.py` draws them."""

from dataclasses import dataclass

RATE = "$__rate_interval"  # Grafana puts a window in its place that fits the scrape interval


@dataclass(frozen=True)
class Panel:
    """One panel.

    Attributes:
        title: short name.
        says: what the reader learns from it.
        queries: (PromQL, legend) pairs; for a heatmap one pair, whose legend is the label of the buckets.
        unit: Grafana's name of the unit.
        kind: `lines`, `stacked`, `heatmap` or `number`.
        width: of the 24 columns of a row.
    """

    title: str
    says: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "lines"
    width: int = 8


def _rate(metric: str, by: str = "", where: str = "") -> str:
    total = f"sum by ({by})" if by else "sum"
    return f"{total} (rate({metric}{f'{{{where}}}' if where else ''}[{RATE}]))"


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
            "models and versions that answer",
            (("count(pathline_model_loaded)", ""),),
            "short",
            "number",
            4,
        ),
        Panel(
            "Requests",
            "sample requests a second by model",
            ((_rate("pathline_requests_total", "model", _SAMPLE), "{{model}}"),),
            "reqps",
            "stacked",
            10,
        ),
        Panel(
            "Errors",
            "answers that are no success, by status; client_gone left before its answer",
            ((_rate("pathline_requests_total", "outcome", _BAD), "{{outcome}}"),),
            "reqps",
            "stacked",
            10,
        ),
    ),
    "Latency": (
        Panel(
            "Latency of sampling",
            "whole time of a request, the network to the client left out",
            tuple(
                (_quantile(share, "pathline_request_seconds", where=_SAMPLE), f"p{share * 100:g}")
                for share in (0.5, 0.9, 0.99)
            ),
            "s",
        ),
        Panel(
            "Where the time goes",
            "means by stage: waiting, solving, and in network calls while solving",
            tuple((_mean(f"pathline_{part}_seconds"), part) for part in ("queue", "solve", "network")),
            "s",
        ),
        Panel(
            "Queue",
            "requests that wait, requests in the engine, samples being solved",
            (
                ("sum(pathline_queue_depth)", "waiting"),
                ("sum(pathline_active_jobs)", "requests"),
                ("sum(pathline_active_lanes)", "samples"),
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
            "share of attempted steps that error control refused",
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
            "evaluations a second for samples that nobody got",
            ((_rate("pathline_cancelled_nfe_total"), "cancelled"),),
            width=6,
        ),
    ),
}


def expressions() -> list[str]:
    """Return every PromQL expression of the dashboard."""
    return [query for panels in ROWS.values() for panel in panels for query, _ in panel.queries]
