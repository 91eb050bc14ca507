"""Sizes of the experiments: the full run and the quick one."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """All settings that affect the length of a run.

    Attributes:
        name: its name in the report.
        training_seeds: seeds of the models trained on moons and circles.
        sampling_seeds: seeds of the starting noise, the real data and the projections on moons and circles.
        samples: samples compared with as many real ones (SWD).
        endpoint_samples: samples per sampling seed that are also solved tightly in float64.
        projections: random directions of SWD.
        hidden, blocks, epochs: the network and the training on moons and circles; the paper's in the full run.
        widths: hidden widths of the ablation, `hidden` among them.
        epoch_counts: epochs of the ablation, `epochs` among them.
        euler, midpoint, rk4: numbers of steps.
        jacobian_samples: samples for which the Jacobian is computed.
        trajectories: samples with measured paths.
        mnist_digits, mnist_components, mnist_hidden, mnist_blocks, mnist_epochs: data, network, training on MNIST.
        mnist_seeds: sampling seeds on MNIST.
        mnist_samples: samples per sampling seed on MNIST.
        mnist_endpoint_samples: of those, how many are also solved tightly in float64.
        classifier_digits: real digits that the classifier is trained on.
        finest: the most steps in the convergence experiment.
        target: the relative error for which it measures the cost.
        tight: tolerance of the float64 solutions that stand for the exact ends of paths on moons and circles.
        grid: points along each side of the map of stability.
        price_datasets: data sets of the study of prices.
        price_samples: paths on which the price is measured.
        price_pairs: paths of the parent used to train its reflow.
        price_digits, price_mnist_epochs: digits and epochs for the study's MNIST models.
    """

    name: str
    training_seeds: tuple[int, ...]
    sampling_seeds: tuple[int, ...]
    samples: int
    endpoint_samples: int
    projections: int
    hidden: int
    blocks: int
    epochs: int
    widths: tuple[int, ...]
    epoch_counts: tuple[int, ...]
    euler: tuple[int, ...]
    midpoint: tuple[int, ...]
    rk4: tuple[int, ...]
    jacobian_samples: int
    trajectories: int
    mnist_digits: int
    mnist_components: int
    mnist_hidden: int
    mnist_blocks: int
    mnist_epochs: int
    mnist_seeds: tuple[int, ...]
    mnist_samples: int
    mnist_endpoint_samples: int
    classifier_digits: int
    finest: int
    target: float
    tight: float
    grid: int
    price_datasets: tuple[str, ...]
    price_samples: int
    price_digits: int
    price_mnist_epochs: int
    price_pairs: int


FULL = Sizes(
    name="full",
    training_seeds=(0, 1, 2),
    sampling_seeds=(0, 1, 2, 3, 4),
    samples=300,
    endpoint_samples=50,
    projections=200,
    hidden=256,
    blocks=4,
    epochs=300,
    widths=(64, 128, 256, 512),
    epoch_counts=(50, 100, 200, 300, 500),
    euler=(10, 20, 50, 100, 200),
    midpoint=(10, 20, 50, 100),
    rk4=(2, 3, 5, 10, 20, 50),
    jacobian_samples=200,
    trajectories=500,
    mnist_digits=10_000,
    mnist_components=64,
    mnist_hidden=512,
    mnist_blocks=6,
    mnist_epochs=500,
    mnist_seeds=(0, 1, 2, 3, 4),
    mnist_samples=400,
    mnist_endpoint_samples=20,
    classifier_digits=20_000,
    finest=320,
    target=1e-8,
    tight=1e-7,
    grid=281,
    price_datasets=("moons", "circles", "digits", "mnist"),
    price_samples=64,
    price_digits=4000,
    price_mnist_epochs=60,
    price_pairs=10_000,
)

QUICK = Sizes(
    name="quick",
    training_seeds=(0, 1),
    sampling_seeds=(0, 1),
    samples=200,
    endpoint_samples=25,
    projections=100,
    hidden=128,
    blocks=4,
    epochs=100,
    widths=(32, 128),
    epoch_counts=(20, 100),
    euler=(10, 20, 50, 200),
    midpoint=(10, 50, 100),
    rk4=(3, 5, 20, 50),
    jacobian_samples=50,
    trajectories=200,
    mnist_digits=4000,
    mnist_components=64,
    mnist_hidden=256,
    mnist_blocks=4,
    mnist_epochs=60,
    mnist_seeds=(0, 1),
    mnist_samples=150,
    mnist_endpoint_samples=10,
    classifier_digits=5000,
    finest=160,
    target=1e-8,
    tight=1e-7,
    grid=281,
    price_datasets=("moons",),
    price_samples=64,
    price_digits=2000,
    price_mnist_epochs=20,
    price_pairs=4_000,
)
