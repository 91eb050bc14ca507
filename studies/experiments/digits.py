"""MNIST in principal components: variance kept, NFE against quality, sheets of samples, and a classifier's verdict."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from models.noise import noise
from solvers import SolverSpec
from studies.experiments.classifier import SURE, train_judge
from studies.experiments.context import Context
from studies.experiments.curves import draw_curves, means, quality_table
from studies.experiments.experiment import Claim, Experiment, Finding, Part, Results, Table, by_key
from studies.experiments.figures import Figures
from studies.experiments.sampling import DOPRI5, Amount, label_of, quality, real, solve, specs
from studies.experiments.trained import Model
from studies.experiments.verdicts import at_least, at_most, exact, over_seeds, within

VARIANCE, VARIANCE_NEAR = 0.95, 0.01
SURE_SHARE = 0.8
SHEETS = (SolverSpec("euler", 50), SolverSpec("rk4", 20), DOPRI5)
JUDGED = (SolverSpec("euler", 10), *SHEETS)
_TIGHT = 1e-9
_SHEET = 48
_COLUMNS = 12

CLAIMS = (
    Claim(
        "variance",
        "64 principal components keep 95 % of MNIST's variance",
        f"share of the variance of the training digits within {VARIANCE_NEAR:.0%} of {VARIANCE:.0%}",
    ),
    Claim(
        "match",
        "RK4 at 80 function evaluations matches Euler at 200 (MNIST)",
        "SWD: the mean difference RK4-20 minus Euler-200 is within plus or minus the noise floor (SWD of real to other "
        "real digits); endpoint error: RK4-20's is at most 1.1 times Euler-200's; each with its 95 % interval over "
        "sampling seeds of one trained model",
        "mnist",
    ),
    Claim(
        "alike",
        "Euler-50, RK4-20 and DOPRI5 give samples of the same quality on MNIST",
        "SWD differences to DOPRI5 within plus or minus the noise floor, with their 95 % intervals over sampling seeds",
        "mnist-samples",
    ),
    Claim(
        "look-real",
        "Samples of the MNIST model look like digits",
        f"a classifier trained on real digits gives at least {SURE_SHARE:.0%} of DOPRI5's samples a probability over "
        f"{SURE}, with its 95 % interval over sampling seeds",
        "mnist-samples",
        ours=True,
    ),
)


def run(context: Context) -> Results:
    """Train or reuse a model, and measure it."""
    sizes = context.sizes
    recipe = context.mnist_recipe()
    wanted = specs(sizes.euler, [n for n in sizes.midpoint if n <= 50], [n for n in sizes.rk4 if 5 <= n <= 20])
    base = {"recipe": recipe.hash, "seeds": sizes.mnist_seeds, "samples": sizes.mnist_samples}
    amount = Amount(wanted, sizes.mnist_samples, sizes.mnist_endpoint_samples, _TIGHT, sizes.mnist_seeds)

    def training() -> Results:
        model = context.models.get(recipe)
        card = model.data.card
        return {
            "variance": card["variance_retained"],
            "digits": card["samples"],
            "components": card["components"],
            "loss": model.loss,
            "train_s": model.train_s,
            "epochs": recipe.epochs,
        }

    def look() -> Results:
        return _look(context, context.models.get(recipe))

    return {
        "training": context.cell("training", base, training),
        "quality": quality(context, "quality", recipe, lambda: context.models.get(recipe), amount),
        "look": context.cell("look", {**base, "digits": sizes.classifier_digits, "sheet": _SHEET}, look),
    }


def _look(context: Context, model: Model) -> Results:
    """Return sheets of decoded samples, and the classifier's confidence in samples and in real digits."""
    sizes = context.sizes
    judge = train_judge(context.data_dir, model.data.decoder, sizes.classifier_digits)
    shape = tuple(model.data.train.shape[1:])
    sheets: Results = {}
    sure: dict[str, list[float]] = {label_of(spec): [] for spec in JUDGED} | {"real": []}
    classes = np.zeros(10, dtype=np.int64)
    for seed in sizes.mnist_seeds:
        x0 = noise(seed, 0, sizes.mnist_samples, shape)
        for spec in JUDGED:
            x = solve(model.velocity, x0, spec).x
            sure[label_of(spec)].append(judge.sure(x.numpy()))
            if seed == sizes.mnist_seeds[0] and spec in SHEETS:
                sheets[label_of(spec)] = _bytes(model, x[:_SHEET])
            if spec == DOPRI5:
                classes += judge.classes(x.numpy())
        held_out = real(context, model, seed, sizes.mnist_samples)[0]
        sure["real"].append(judge.sure(held_out))
        if seed == sizes.mnist_seeds[0]:
            sheets["real digits"] = _bytes(model, torch.as_tensor(held_out[:_SHEET]))
    return {
        "sheets": sheets,
        "sure": sure,
        "classes": classes,
        "accuracy": judge.accuracy,
        "trained_on": judge.digits,
    }


def _bytes(model: Model, latent: torch.Tensor) -> NDArray[np.uint8]:
    """Decode to pictures of 0 ... 255, (n, 784)."""
    return (model.data.decoder.decode(latent.float()) * 255).round().to(torch.uint8).reshape(len(latent), -1).numpy()


def _difference(found: Any, a: str, b: str) -> list[float]:
    solvers = found["solvers"]
    return [one - other for one, other in zip(solvers[a]["swd"], solvers[b]["swd"], strict=True)]


def judge(results: Results) -> list[Finding]:
    """Apply the rules."""
    claims = by_key(CLAIMS)
    training, found, look = results["training"], results["quality"], results["look"]
    kept = exact(training["variance"])
    floor = float(np.mean(found["floor"]))
    difference = over_seeds(_difference(found, "rk4-20", "euler-200"))
    pairs = zip(found["solvers"]["rk4-20"]["endpoint"], found["solvers"]["euler-200"]["endpoint"], strict=True)
    ratio = over_seeds([float(np.log(a / b)) for a, b in pairs])
    alike = []
    for label in ("euler-50", "rk4-20"):
        gap = over_seeds(_difference(found, label, "dopri5"))
        alike.append(Part(f"SWD of {label} minus dopri5 (floor {floor:.4f})", gap, within(gap, -floor, floor)))
    sure = {label: over_seeds(values) for label, values in look["sure"].items()}
    shares = ", ".join(f"{label} {value.mean:.1%} ± {value.sd:.1%}" for label, value in sure.items())
    note = (
        f"Share with a probability over {SURE}: {shares}. The classifier (scikit-learn MLP on the components, trained "
        f"on {look['trained_on']:,} real digits) classifies {look['accuracy']:.1%} of the 10,000 test digits "
        f"correctly. It recognises this many of DOPRI5's samples as 0 to 9: {', '.join(map(str, look['classes']))}"
    )
    ends = {label: means(found, label, "endpoint") for label in ("euler-50", "rk4-20", "dopri5")}
    distances = ", ".join(f"{label} {value:.3g}" for label, value in ends.items())
    return [
        Finding(
            claims["variance"],
            (Part("variance kept", kept, within(kept, VARIANCE - VARIANCE_NEAR, VARIANCE + VARIANCE_NEAR)),),
            f"{training['components']} components of {training['digits']:,} digits, pixels in [0, 1]",
        ),
        Finding(
            claims["match"],
            (
                Part(
                    f"SWD of RK4-20 minus Euler-200 (floor {floor:.4f})", difference, within(difference, -floor, floor)
                ),
                Part("ln of endpoint error RK4-20 / Euler-200", ratio, at_most(ratio, float(np.log(1.1)))),
            ),
        ),
        Finding(claims["alike"], tuple(alike), f"Their endpoint errors differ: {distances}"),
        Finding(
            claims["look-real"],
            (Part("share of DOPRI5's samples", sure["dopri5"], at_least(sure["dopri5"], SURE_SHARE)),),
            note,
        ),
    ]


def tables(results: Results) -> list[Table]:
    """Tabulate quality by solver, and the classifier's confidence."""
    title = "MNIST, one trained model: mean ± standard deviation over sampling seeds"
    sure = results["look"]["sure"]
    rows = [[label, over_seeds(values).mean, over_seeds(values).sd] for label, values in sure.items()]
    return [
        quality_table("mnist", title, [results["quality"]]),
        Table("mnist-sure", f"Share of digits with a probability over {SURE}", ("digits", "share", "±"), rows),
    ]


def notes(results: Results) -> Sequence[str]:
    """Describe the training in one sentence."""
    training = results["training"]
    loss = "not recorded" if training["loss"] is None else f"{training['loss']:.4f}"
    return [
        f"Trained once (one training seed) for {training['epochs']} epochs on {training['digits']:,} digits in "
        f"{training['train_s'] or 0:.0f} s; last training loss {loss}."
    ]


def draw(results: Results, figures: Figures) -> None:
    """Plot quality against NFE, and a sheet of pictures for each solver."""
    draw_curves(figures, "mnist", {"mnist": [results["quality"]]})
    sheets = results["look"]["sheets"]
    figure, axes = figures.panels(2, 2, width=4.2, height=1.75)
    for axis, (label, rows) in zip(
        axes, sorted(sheets.items(), key=lambda item: item[0] == "real digits"), strict=True
    ):
        whole = len(rows) // _COLUMNS * _COLUMNS
        pictures = np.array(rows[:whole], dtype=np.uint8).reshape(-1, _COLUMNS, 28, 28)
        axis.imshow(255 - pictures.transpose(0, 2, 1, 3).reshape(-1, _COLUMNS * 28), cmap="gray", vmin=0, vmax=255)
        axis.set_title(label)
        axis.axis("off")
    figures.save(figure, "mnist-samples")


EXPERIMENT = Experiment(
    name="mnist",
    title="MNIST in 64 principal components",
    claims=CLAIMS,
    run=run,
    judge=judge,
    tables=tables,
    draw=draw,
    notes=notes,
)
