"""Metrics by name, what each call adds, and histograms that count like prometheus_client's own."""

import platform

import numpy as np
import prometheus_client
import pytest
import torch
from prometheus_client import CollectorRegistry

from engine.job import JobResult
from service import VERSION
from service.errors import Kind
from service.metrics import METRICS, REFUSALS, Histogram, Metric, Metrics, geometric
from solvers.trace import StepTrace


def _value(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"pathline_{name}", labels)


def test_names() -> None:
    families = {family.name for family in Metrics().registry.collect()}
    process = {name for name in families if not name.startswith("pathline_")}
    assert process >= {"process_cpu_seconds", "process_resident_memory_bytes", "process_open_fds"}
    assert all(name.startswith("process_") for name in process)


def test_versions() -> None:
    labels = {"version": VERSION, "python": platform.python_version(), "torch": torch.__version__}
    assert _value(Metrics(), "build_info", **labels) == 1


def test_counters_start_at_zero() -> None:
    metrics = Metrics()
    for kind in Kind:
        assert _value(metrics, "errors_total", type=kind.slug, status=str(kind.status)) == 0
    for reason in REFUSALS:
        assert _value(metrics, "refused_connections_total", reason=reason) == 0
    for result in ("accepted", "rejected"):
        assert _value(metrics, "steps_total", solver="dopri5", result=result) == 0
    assert _value(metrics, "steps_total", solver="euler", result="accepted") is None  # it has no error estimate
    assert _value(metrics, "cancelled_nfe_total") == 0
    metrics.expect("/livez", ["200", "503"])
    for outcome in ("200", "503", "client_gone"):
        assert _value(metrics, "requests_total", route="/livez", outcome=outcome) == 0


def result(nfe: list[int]) -> JobResult:
    """Return the result of a job that took half a second."""
    n = len(nfe)
    x, t, status = torch.zeros(n, 2), np.ones(n), np.array(["success"] * n)
    trace = StepTrace.build(np.zeros(0, np.int64), np.zeros((0, 5)))
    return JobResult(x, None, t, np.array(nfe), status, trace, sum(nfe), 0.001, 0.5, 0.4)


def test_the_times_of_a_model_start_at_zero() -> None:
    metrics = Metrics()
    metrics.solved("moons", "rk4", result([4]))
    for name in ("moons", "digits"):
        metrics.model_is_loaded(name, 2, True, "fused")
    for name in ("queue_seconds", "solve_seconds", "network_seconds"):
        assert _value(metrics, f"{name}_count", model="digits") == 0
        assert _value(metrics, f"{name}_count", model="moons") == 1  # a second version does not reset the counts


def test_what_evaluates_a_version_is_told_while_it_is_loaded() -> None:
    metrics, labels = Metrics(), {"model": "moons", "version": "2", "path": "fused"}
    metrics.model_is_loaded("moons", 2, True, "fused")
    assert _value(metrics, "model_path", **labels) == 1
    metrics.model_is_loaded("moons", 2, False, "fused")
    assert _value(metrics, "model_path", **labels) is None


def test_solved_and_stepped() -> None:
    metrics = Metrics()
    metrics.solved("moons", "dopri5", result([14, 20, 26]))
    metrics.stepped("dopri5", np.array([-0.1, 0.2, 0.3]), np.array([True, False, True]))
    assert _value(metrics, "nfe_sum", model="moons", solver="dopri5") == 60
    assert _value(metrics, "solve_seconds_sum", model="moons") == 0.5
    assert _value(metrics, "step_size_count", solver="dopri5") == 2
    assert _value(metrics, "step_size_sum", solver="dopri5") == 0.4
    assert _value(metrics, "steps_total", solver="dopri5", result="rejected") == 1


def test_batches_and_cancellations() -> None:
    metrics = Metrics()
    metrics.batch("moons", "sample", 300, 5, 2)
    metrics.batch("moons", "sample", 100, 3, 1)
    metrics.cancelled(40)
    assert _value(metrics, "batch_rows_sum", model="moons", operation="sample") == 400
    assert _value(metrics, "batch_requests_sum", model="moons", operation="sample") == 8
    assert _value(metrics, "batch_solvers_bucket", model="moons", operation="sample", le="1.0") == 1
    assert _value(metrics, "cancelled_nfe_total") == 40


def test_two_services_count_for_themselves() -> None:
    first, second = Metrics(), Metrics()
    for each in (first, second):
        each.expect("/livez", ["200"])
    first.answered("/livez", "200", 0.001)
    assert _value(first, "requests_total", route="/livez", outcome="200") == 1
    assert _value(second, "requests_total", route="/livez", outcome="200") == 0


def test_text_has_no_creation_times() -> None:
    metrics = Metrics()
    metrics.answered("/livez", "200", 0.001)
    assert b"pathline_requests_total{" in metrics.text()
    assert b"_created" not in metrics.text()


def test_the_device() -> None:
    metrics = Metrics()
    metrics.runs_on("cuda:0", "NVIDIA L4")
    assert _value(metrics, "device_info", device="cuda:0", name="NVIDIA L4") == 1


BOUNDS = (0.1, 1.0, 10.0)


def test_as_the_reference_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [0.05, 0.1, 0.100001, 1.0, 5.0, 10.0, 11.0, 1e9]
    monkeypatch.setitem(METRICS, "x", Metric("histogram", "text", ("model",), BOUNDS))
    metrics, other = Metrics(), CollectorRegistry()
    whole = metrics.histograms["x"]
    reference = prometheus_client.Histogram("x", "text", ("model",), registry=other, buckets=BOUNDS)
    whole.add(values[:5], "a")
    for value in values[5:]:
        whole.one(value, "a")
    whole.add(np.array(values * 4), "a")
    for value in values * 5:
        reference.labels("a").observe(value)
    for bound in ("0.1", "1.0", "10.0", "+Inf"):
        labels = {"model": "a", "le": bound}
        assert _value(metrics, "x_bucket", **labels) == other.get_sample_value("x_bucket", labels)
    assert _value(metrics, "x_count", model="a") == other.get_sample_value("x_count", {"model": "a"})
    assert _value(metrics, "x_sum", model="a") == pytest.approx(other.get_sample_value("x_sum", {"model": "a"}))


@pytest.mark.parametrize("times", [1, 30])
def test_what_is_not_finite_is_left_out(times: int) -> None:
    histogram = Histogram(BOUNDS)
    histogram.add(np.array([np.nan, np.inf, 0.5] * times))
    assert histogram.total() == (times, 0.5 * times)


def test_nothing_is_a_valid_array() -> None:
    histogram = Histogram(BOUNDS)
    histogram.add([])
    assert histogram.total() == (0, 0.0)


def test_geometric_bounds() -> None:
    bounds = geometric(1e-4, 60.0, 1.4)
    assert bounds[0] == 1e-4
    assert bounds[-2] < 60 <= bounds[-1]
    ratios = np.array(bounds[1:]) / np.array(bounds[:-1])
    assert ratios.min() > 1.38
    assert ratios.max() < 1.42
