from typing import Any

from studies.experiments.pareto import judge


def model(dopri5_nfe: float) -> dict[str, Any]:
    costs = {"euler-20": 20, "euler-200": 200, "midpoint-10": 20, "midpoint-100": 200, "rk4-5": 20, "rk4-20": 80}
    costs |= {"rk4-50": 200, "dopri5": dopri5_nfe}
    errors = {"euler-20": 0.05, "midpoint-10": 0.02}
    solvers = {
        label: {"nfe": nfe, "swd": [0.07, 0.08], "endpoint": [errors.get(label, 0.004)] * 2}
        for label, nfe in costs.items()
    }
    return {"floor": 0.04, "solvers": solvers}


def test_what_the_cheapest_match_costs_is_the_mean_over_models_as_in_the_table():
    note = judge({"moons": {"models": [model(130.0), model(118.0), model(127.0)]}})[0].note
    by_swd, by_error = note.split("; ")
    assert "by SWD: " in by_swd
    for text in ("euler-20 (20 NFE)", "midpoint-10 (20 NFE)", "rk4-5 (20 NFE)", "dopri5 (125 NFE)"):
        assert text in by_swd
    for text in ("rk4-5 (20 NFE)", "dopri5 (125 NFE)", "midpoint-100 (200 NFE)", "euler-200 (200 NFE)"):
        assert text in by_error
