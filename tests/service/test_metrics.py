"""The metrics by name, and what each call adds."""

import numpy as np

from service.metrics import Metrics


def _value(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(f"pathline_{name}", labels)


NAMES = """
requests request_seconds queue_seconds solve_seconds network_seconds nfe step_size steps batch_rows batch_requests
batch_solvers queue_depth active_jobs active_lanes job_bytes cancelled_nfe model_fallback model_loaded device_info
refused_connections
"""


def test_names() -> None:
    families = {family.name.removeprefix("pathline_") for family in Metrics().registry.collect()}
    assert families == set(NAMES.split())


def test_solved_and_stepped() -> None:
    metrics = Metrics()
    metrics.solved("moons", "dopri5", np.array([14, 20, 26]), 0.001, 0.5, 0.4)
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
    first.answered("/livez", "", "", "200", 0.001)
    assert _value(second, "requests_total", route="/livez", model="", solver="", outcome="200") is None


def test_text_has_no_creation_times() -> None:
    metrics = Metrics()
    metrics.answered("/livez", "", "", "200", 0.001)
    assert b"pathline_requests_total{" in metrics.text()
    assert b"_created" not in metrics.text()


def test_the_device() -> None:
    metrics = Metrics()
    metrics.runs_on("cuda:0", "NVIDIA L4")
    assert _value(metrics, "device_info", device="cuda:0", name="NVIDIA L4") == 1
