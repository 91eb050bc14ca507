"""Numbers from the paper's text that can be counted: parameters and evaluations."""

from models.architectures import build
from solvers import catalogue
from studies.experiments.context import Context
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import Figures
from studies.experiments.verdicts import exact, within

NETWORKS = {
    "256 x 4 on 2-D data": {"dim": 2, "hidden": 256, "blocks": 4, "time_width": 64},
    "512 x 6 on 64-D data": {"dim": 64, "hidden": 512, "blocks": 6, "time_width": 64},
    "512 x 4 on 64-D data": {"dim": 64, "hidden": 512, "blocks": 4, "time_width": 64},
}
SMALL, LARGE = 547e3, 2.1e6

CLAIMS = (
    Claim(
        "parameters-2d",
        "The network for 2-D data (hidden 256, 4 blocks) has about 547K parameters",
        "the count rounds to 547 thousand",
    ),
    Claim(
        "parameters-mnist",
        "The network for MNIST (hidden 512, 6 blocks, 64-D) has about 2.1M parameters",
        "the count rounds to 2.1 million",
    ),
    Claim(
        "nfe",
        "Euler takes 1, Midpoint 2, RK4 4 and DOPRI5 6 new evaluations a step; RK4 with 20 steps takes 80",
        "counted from the tableaus, with the first stage of DOPRI5 taken over from the step before",
    ),
)


def run(context: Context) -> Results:
    """Count parameters and evaluations."""

    def measure() -> Results:
        counts = {
            name: sum(parameter.numel() for parameter in build("residual_mlp", config).parameters())
            for name, config in NETWORKS.items()
        }
        tableaus = {name: catalogue.find(name).tableau for name in ("euler", "midpoint", "rk4", "dopri5")}
        return {
            "parameters": counts,
            "calls": {name: one.stages - one.fsal for name, one in tableaus.items()},
        }

    return context.cell("counts", {"networks": list(NETWORKS)}, measure)


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    small, large, other = (exact(results["parameters"][name]) for name in NETWORKS)
    expected = {"euler": 1, "midpoint": 2, "rk4": 4, "dopri5": 6}
    calls = [
        Part(f"calls a step of {name}", exact(count), within(exact(count), expected[name], expected[name]))
        for name, count in results["calls"].items()
    ]
    total = exact(20 * results["calls"]["rk4"])
    note = (
        f"512 x 6 has {large.mean:,.0f}. Four blocks instead of six have {other.mean:,.0f}, which rounds to 2.2M; the "
        "layers of the paper's network may differ from ours"
    )
    return [
        Finding(
            claims["parameters-2d"],
            (Part("parameters", small, within(small, SMALL - 500, SMALL + 500)),),
            f"Counted: {small.mean:,.0f}, with a 64-wide time embedding and a final LayerNorm",
        ),
        Finding(
            claims["parameters-mnist"], (Part("parameters", large, within(large, LARGE - 5e4, LARGE + 5e4)),), note
        ),
        Finding(claims["nfe"], (*calls, Part("calls of RK4-20", total, within(total, 80, 80)))),
    ]


def tables(results: Results) -> list[Table]:
    """Tabulate the parameters."""
    rows = [[name, count] for name, count in results["parameters"].items()]
    return [Table("parameters", "Parameters of the residual MLP", ("network", "parameters"), rows)]


def draw(results: Results, figures: Figures) -> None:
    """Draw nothing: the counts need no figure."""


EXPERIMENT = Experiment(
    name="numbers", title="Numbers that can be counted", claims=CLAIMS, run=run, judge=judge, tables=tables, draw=draw
)
