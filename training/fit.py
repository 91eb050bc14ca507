"""One run from recipe to published model: prepare, train or resume, publish, then measure."""

import importlib.util
import signal
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.checkpoint.card import CheckpointError
from models.checkpoint.saving import save
from models.network import ArchitectureError, Network
from models.velocity import FieldKind
from training import folders
from training.config import Recipe
from training.data import prepare
from training.dataset import DataSet
from training.devices import Group, choose_device
from training.draws import DrawPurpose, seed32
from training.errors import StateError, Stopped, TrainingError, UsageError
from training.flow_matching import Validation
from training.folders import make_writable, training_mark
from training.measurement import SECONDS, measure_published
from training.parents import load_parent, pin_parent
from training.progress import Board, progress_bar, stop_requests
from training.reflow import with_pairs
from training.state import Header, RunFolder
from training.student import Teacher, take_over, with_teacher
from training.trainer import Trainer
from training.user_data.data import pin


@dataclass(frozen=True)
class Options:
    """Places and settings of a run; only the device changes its result.

    Attributes:
        models_dir: the model repository to publish to.
        runs_dir: folder for the state of runs.
        data_dir: folder with data files, or None.
        device: `auto`, `cpu` or `cuda`.
        force: train even if the repository has a model of this recipe.
        save_every: seconds between two saves of the state.
        tensorboard: folder in which each run gets a folder of logs for TensorBoard, or None.
        seconds: limit on the measurements after the model is published; 0 measures nothing.
        examples: whether to store some of the held-out data with the model.
    """

    models_dir: Path
    runs_dir: Path
    data_dir: Path | None = None
    device: str = "auto"
    force: bool = False
    save_every: float = 10.0
    tensorboard: Path | None = None
    seconds: float = SECONDS
    examples: bool = True


def fit(recipe: Recipe, options: Options) -> Path:
    """Train the recipe's model and publish it, resuming from a saved state if there is one.

    If torchrun started several processes, they share the run, and only the first one writes and prints.

    Returns:
        The folder of the published version; an existing one if it has this recipe and `force` is not set. Processes
        that do not write return the folder of the model.

    Raises:
        TrainingError: the run failed; the message is one line that says what happened and what to do.
    """
    recipe = pin_parent(pin(recipe))

    def say(text: str) -> None:
        print(f"{recipe.name}: {text}", flush=True)

    run = RunFolder(options.runs_dir / f"{recipe.name}-{recipe.hash}")
    existing = folders.find(options.models_dir, recipe.name, recipe.hash)
    if existing and not options.force:
        say(f"{existing} already has this recipe ({recipe.hash}); use --force to train it again")
        return existing
    if options.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError(
            "--tensorboard needs the package tensorboard; run pip install -c constraints.txt -e '.[tensorboard]'"
        )
    device = choose_device(options.device)
    group = Group.join(device)
    if group.rank:
        _assist(recipe, options, run, device, group)
        return options.models_dir / recipe.name
    make_writable(options.models_dir, "model folder")
    with run.locked():
        data, teacher = _prepare(recipe, options)
        for line in data.notes:
            say(line)
        trainer = new_trainer(recipe, data, device, group, teacher)
        _resume(trainer, run, say)
        logs = None if options.tensorboard is None else options.tensorboard / run.folder.name
        with closing(Board(logs, trainer.step)) as board:
            _train(trainer, run, options, board)
            group.leave()
            folder = _publish(trainer, data, options.models_dir)
            run.remove()
            best = "" if trainer.best is None else f", the least, after {trainer.best[0]:,} of {trainer.step:,} steps"
            say(
                f"trained in {trainer.seconds:.1f} s and written to {folder}; loss {trainer.last_loss:.4f}, of the "
                f"published weights on held-out data {trainer.held_out_loss:.4f}{best}"
            )
            seed = seed32(recipe.seed, DrawPurpose.EVALUATION)
            try:
                quality = measure_published(folder, data, seed, options.seconds, teacher, say, options.examples)
            except KeyboardInterrupt:
                raise Stopped(
                    f"{recipe.name}: stopped measuring; the model is in {folder}, python -m training evaluate {folder} "
                    "measures it",
                    signal.SIGINT,
                ) from None
            if quality:
                values = {"swd": quality.swd, "swd_real": quality.swd_real, "nfe": quality.nfe_mean}
                board.log({f"quality/{name}": value for name, value in values.items()}, trainer.step)
    return folder


def _prepare(recipe: Recipe, options: Options) -> tuple[DataSet, Teacher | None]:
    """Return the data to train on (the recipe's data set, or pairs of its parent), and the teacher of a student."""
    data = prepare(recipe, options.data_dir)
    if recipe.student is not None:
        return with_teacher(recipe, data)
    return data if recipe.reflow is None else with_pairs(recipe, data, options.runs_dir), None


def _assist(recipe: Recipe, options: Options, run: RunFolder, device: torch.device, group: Group) -> None:
    """Do this process's share of every step, with the same data and state as the process that writes."""
    data, teacher = _prepare(recipe, options)
    trainer = new_trainer(recipe, data, device, group, teacher)
    if saved := run.read():
        trainer.restore(*saved)
    with stop_requests() as signals:
        trainer.run(stopping=lambda: bool(signals))
    group.leave()


def new_network(recipe: Recipe, data: DataSet) -> Network:
    """Build the recipe's network for the data, with the initial weights of its seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed32(recipe.seed, DrawPurpose.WEIGHTS))
        kind = FieldKind.VELOCITY if recipe.student is None else FieldKind.AVERAGE
        return recipe.network.network(data.train.shape[1:], data.condition, kind)


def new_trainer(
    recipe: Recipe, data: DataSet, device: torch.device, group: Group | None = None, teacher: Teacher | None = None
) -> Trainer:
    """Set up a run of the recipe on the data, before its first step; a student starts from its parent's weights.

    Raises:
        UsageError: the network cannot be built for these data, has other weights than the model to continue, or no
            sample could be paired anew.
    """
    alone = data.conditions is not None and len(np.unique(data.conditions, axis=0)) == len(data.conditions)
    if recipe.coupling == "ot" and alone:
        raise UsageError(
            "coupling is 'ot'; no two training samples have the same condition, so none could be paired anew: use "
            "'independent'"
        )
    try:
        network = new_network(recipe, data)
    except ArchitectureError as error:
        raise UsageError(f"network: {error}") from None
    validation = None
    if not (group and group.rank):
        validation = Validation.of(recipe.seed, data.reference, data.reference_conditions, device)
    if teacher is not None:
        take_over(network, teacher.parent.velocity)
    if recipe.start is not None and not take_over(network, load_parent(recipe.start, "start").velocity):
        raise UsageError(
            f"start.checkpoint {recipe.start.checkpoint} has other weights than the network of this recipe; use the "
            "architecture and the size that it was trained with"
        )
    return Trainer(recipe, network, data, device, validation, group, teacher)


def _resume(trainer: Trainer, run: RunFolder, say: Callable[[str], None]) -> None:
    """Resume from the run's state if there is one, and say what happens."""
    saved = run.read()
    if saved is None:
        parameters = sum(p.numel() for p in trainer.network.parameters())
        say(
            f"training {parameters:,} parameters on {len(trainer.data):,} samples for {trainer.total_steps:,} steps of "
            f"{trainer.recipe.batch_size:,} samples on {trainer.device.type}; state in {run.folder}"
        )
        return
    tensors, header = saved
    try:
        trainer.restore(tensors, header)
    except StateError as error:
        raise StateError(f"{run.file}: {error}; delete {run.folder} to train from the start") from None
    torch.set_num_threads(header.threads)  # a different number would change the last bits
    say(
        f"resuming at step {trainer.step:,} of {trainer.total_steps:,} from {run.folder}, with {header.threads} "
        "threads as before"
    )
    if trainer.device.type != header.device:
        say(
            f"note: the run began on {header.device} and resumes on {trainer.device.type}; the last bits of the "
            "weights will differ from those of an uninterrupted run"
        )


def _train(trainer: Trainer, run: RunFolder, options: Options, board: Board) -> None:
    """Run the remaining steps; on Ctrl-C or SIGTERM save and raise Stopped."""
    name = trainer.recipe.name
    with (
        stop_requests() as signals,
        training_mark(options.models_dir, name) as mark,
        progress_bar(name, trainer.total_steps, trainer.step, mark) as progress,
    ):

        def after(loss: float | None) -> None:
            progress(loss)
            if trainer.step % trainer.steps_per_epoch == 0:
                board.epoch(trainer)

        def write(tensors: dict[str, Tensor], header: Header) -> None:
            board.flush()
            run.write(tensors, header)

        try:
            complete = trainer.run(after, write, lambda: bool(signals), options.save_every)
        except TrainingError as error:
            explained = isinstance(error, StateError) or not run.file.exists()  # a failed write says what is left
            state = "" if explained else f"; the last good state is kept in {run.folder}"
            raise type(error)(f"{name}: {error}{state}") from None
    if signals and not complete:
        raise Stopped(
            f"{name}: stopped at step {trainer.step:,} of {trainer.total_steps:,}; state saved in {run.folder}, run "
            "the same command to resume",
            signals[0],
        )


_COUPLINGS = {"independent": "independent", "ot": "minibatch optimal-transport"}


def _publish(trainer: Trainer, data: DataSet, models_dir: Path) -> Path:
    """Write the checkpoint with its recipe and losses."""
    recipe, network = trainer.recipe, trainer.published()
    record = {
        "recipe": recipe.model_dump(mode="json"),
        "recipe_hash": recipe.hash,
        "optimiser": f"adam, beta 0.9 and 0.999, eps 1e-8, {recipe.schedule} learning rate",
        "path": f"optimal transport, x_t = (1 - t) x0 + t x1, {_COUPLINGS[recipe.coupling]} coupling",
        "steps": trainer.step,
        "published_step": trainer.step if trainer.best is None else trainer.best[0],
        "parameters": sum(p.numel() for p in network.parameters()),
        "device": trainer.device.type,
        "precision": "bfloat16" if trainer.mixed else "float32",
        "threads": torch.get_num_threads(),
        "train_s": round(trainer.seconds, 3),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "loss": trainer.last_loss,
        "held_out_loss": trainer.held_out_loss,
        "losses": trainer.losses,
        "validation": [{"step": step, "loss_by_t": losses} for step, losses in trainer.validations],
    }
    try:
        return save(
            models_dir, recipe.name, network, data.decoder, dataset=data.card, training=record, seed=recipe.seed,
            noise_independent=recipe.coupling == "independent" and recipe.reflow is None and recipe.student is None,
        )  # fmt: skip
    except CheckpointError as error:
        raise TrainingError(f"{error}; the trained state is kept, run the same command to publish it") from None
