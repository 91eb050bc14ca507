"""The training loop: Adam on the flow-matching loss, which can be stopped and resumed after every step.

On the CPU, a resumed run gives the same weights bit for bit as an uninterrupted one, given the same machine type, torch
build and number of threads. This relies on three things: the state contains everything that steps change; random
numbers are functions of (seed, step); and states are taken only between steps.
"""

import copy
import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.optim.swa_utils import get_ema_multi_avg_fn

from models.conditions import ONE
from models.network import Network
from training import draws
from training.config import Recipe
from training.dataset import DataSet
from training.devices import Group, mixes
from training.draws import DrawPurpose
from training.errors import StateError, TrainingError
from training.flow_matching import Validation, flow_matching_loss, optimal_coupling
from training.state import Header
from training.student import Teacher

VALIDATIONS = 20
"""How often the held-out loss is measured in a run."""

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""What torch's Adam keeps of each parameter."""


def average_decay(ema: float, step: int) -> float:
    """Return the decay of the moving average after training step `step` (from 0): min(ema, (1 + n) / (10 + n)).

    The average reaches back over about a tenth of the steps done, and over 1 / (1 - ema) steps at most. So it forgets
    the initial weights in a run of any length; with `ema` alone, 74 % of the average after 300 steps at 0.999 would be
    the initial weights. The rule is that of TensorFlow's `ExponentialMovingAverage` with `num_updates`.
    """
    return min(ema, (1 + step) / (10 + step))


class Trainer:
    """One run: the network, its moving average, Adam, and the progress so far.

    Attributes:
        network: the network in training.
        step: steps done.
        total_steps: total number of steps.
        seconds: time spent in steps so far.
        last_loss: mean loss of the last whole epoch, or None.
        losses: mean loss of each whole epoch.
        validations: (step, held-out loss by time), of the weights that would have been published then.
        best: the step and the held-out loss of the weights that are published; None for the last ones.
        mixed: whether the network's products are computed in bfloat16.
    """

    def __init__(
        self,
        recipe: Recipe,
        network: Network,
        data: DataSet,
        device: torch.device,
        validation: Validation | None = None,
        group: Group | None = None,
        teacher: Teacher | None = None,
    ) -> None:
        """Set up a run before its first step.

        Args:
            recipe: the recipe.
            network: the network with its initial weights.
            data: the samples to train on, with the conditions and the noise paired with them, if they have any.
            device: the device to train on.
            validation: held-out data; None measures no held-out loss.
            group: the processes that share the run; None is this process alone.
            teacher: the parent of a student, for a recipe with one.
        """
        self.recipe = recipe
        self.network = network.to(device).train()
        self.device = device
        self.data = torch.from_numpy(data.train).to(device)
        self.steps_per_epoch = -(-len(data.train) // recipe.batch_size)
        self.total_steps = recipe.steps or (recipe.epochs or 1) * self.steps_per_epoch
        self.step = 0
        self.seconds = 0.0
        self.last_loss: float | None = None
        self.losses: list[float] = []
        self.validations: list[tuple[int, list[float]]] = []
        self.best: tuple[int, float] | None = None
        self._best: dict[str, Tensor] = {}
        self._conditions, self._noise = (
            None if array is None else torch.from_numpy(array).to(device) for array in (data.conditions, data.noise)
        )
        self._digest = data.digest
        self._validation = validation
        self._group = Group() if group is None else group
        self._teacher = teacher
        if teacher is not None:
            teacher.parent.velocity.to(device)
        self.mixed = teacher is None and mixes(recipe, device)
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._parameters = dict(network.named_parameters())
        self._average = {n: p.detach().clone() for n, p in self._parameters.items()} if recipe.ema else {}
        self._adam = Adam(self._parameters.values(), fused=True)

    def run(
        self,
        after: Callable[[float | None], None] = lambda loss: None,
        save: Callable[[dict[str, Tensor], Header], None] = lambda tensors, header: None,
        stopping: Callable[[], bool] = lambda: False,
        save_every: float = math.inf,
    ) -> bool:
        """Train to the end, or until it is stopped; the state is saved in both cases.

        Args:
            after: called after each step with the mean loss of the last whole epoch (None in the first).
            save: called with the state (see `state`) when it is worth writing.
            stopping: called after each step; returns whether to stop now.
            save_every: seconds between two saves.

        Returns:
            Whether the run is complete.

        Raises:
            TrainingError: the loss or a weight is no longer finite; nothing is saved after that.
        """
        saved = time.monotonic()
        while not self.complete:
            epoch, first = divmod(self.step, self.steps_per_epoch)
            source = draws.generator(self.recipe.seed, DrawPurpose.ORDER, epoch)
            order = torch.from_numpy(source.permutation(len(self.data))).to(self.device)
            for rows in order.split(self.recipe.batch_size)[first:]:
                self._train_step(rows)
                self._validate()
                after(self.last_loss)
                stopped = self._group.any(stopping() or self.complete, self.device)
                if stopped or time.monotonic() - saved > save_every:
                    self._check_weights()
                    save(*self.state())
                    saved = time.monotonic()
                if stopped:
                    return self.complete
        self._check_weights()
        save(*self.state())
        return True

    @property
    def complete(self) -> bool:
        """Whether no step is left, or the held-out loss has not fallen for too long."""
        waited = 0 if self.best is None else self.step - self.best[0]
        return self.step == self.total_steps or 0 < self.recipe.patience * self.total_steps <= waited

    def _train_step(self, rows: Tensor) -> None:
        """Take one step of Adam on the samples `rows`; after the last step of an epoch, record its mean loss."""
        begin = time.perf_counter()
        x1 = self.data.index_select(0, rows)
        x0, t = draws.batch(
            self.recipe.seed, self.step, len(rows), tuple(x1.shape[1:]), self.recipe.times == "logit_normal"
        )
        if self.recipe.coupling == "ot":
            groups = None if self._conditions is None else self._conditions.index_select(0, rows).cpu().numpy()
            x0 = x0[optimal_coupling(x0, x1.cpu().numpy(), groups)]
        times = (t,)
        if self._teacher is not None:
            times = draws.steps(self.recipe.seed, self.step, t, self._teacher.config.instants)
        x0, *times = (torch.from_numpy(array).to(self.device) for array in (x0, *times))
        if self._noise is not None:
            x0 = self._noise.index_select(0, rows)
        condition = () if self._conditions is None else (self._shown(self._conditions.index_select(0, rows), x1),)
        self._adam.zero_grad()
        loss = self._gradient(x0, x1, *times, *condition)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(self._parameters.values(), self.recipe.clip)
        for group in self._adam.param_groups:
            group["lr"] = self.learning_rate
        self._adam.step()
        if self._average:
            update = get_ema_multi_avg_fn(average_decay(self.recipe.ema, self.step))
            update(list(self._average.values()), list(self._parameters.values()), self.step)
        self._loss_sum += loss.detach()
        self.step += 1
        done = (self.step - 1) % self.steps_per_epoch + 1  # in this epoch
        if done == self.steps_per_epoch or self.step == self.total_steps:
            self._check_finite("the loss is", self._loss_sum)
            self.last_loss = self._loss_sum.item() / done
            self.losses.append(self.last_loss)
            self._loss_sum.zero_()
        self.seconds += time.perf_counter() - begin

    @property
    def held_out_loss(self) -> float | None:
        """Mean loss on held-out data of the weights that are published; None before it was measured."""
        if self.best is not None:
            return self.best[1]
        return float(np.mean(self.validations[-1][1])) if self.validations else None

    @property
    def learning_rate(self) -> float:
        """Learning rate of the next step: a function of its number, so that there is no state to restore."""
        rate = self.recipe.learning_rate
        if self.recipe.schedule == "cosine":
            rate *= 0.5 * (1 + math.cos(math.pi * self.step / self.total_steps))
        rising = self.recipe.warmup * self.total_steps
        return rate * min(1.0, (self.step + 1) / rising) if rising else rate

    def _gradient(self, *batch: Tensor) -> Tensor:
        """Set the gradients of the weights from a batch (x0, x1, times, conditions); return its loss."""
        rows = len(batch[0])
        share = self._group.share(rows)
        part = torch.zeros((), device=self.device)
        if share.start < share.stop:
            with torch.autocast(self.device.type, torch.bfloat16, enabled=self.mixed):
                loss = flow_matching_loss if self._teacher is None else self._teacher.loss
                part = loss(self.network, *(tensor[share] for tensor in batch))
            if self._group.size > 1:
                part = part * ((share.stop - share.start) / rows)
            part.backward()
        return self._group.sum(self._parameters.values(), part)

    def _shown(self, conditions: Tensor, x: Tensor) -> Tensor:
        """Return the conditions for this step, some of them replaced by the null, so that the network learns it."""
        config = self.network.condition
        if config is None or not self.recipe.dropout:
            return conditions
        chance = draws.generator(self.recipe.seed, DrawPurpose.DROPOUT, self.step).random(len(conditions))
        dropped = torch.from_numpy(chance < self.recipe.dropout).to(self.device)
        null = config.null_of(ONE, x.dtype).to(self.device)
        return torch.where(dropped.reshape(-1, *([1] * (conditions.ndim - 1))), null, conditions)

    def _validate(self) -> None:
        """Measure the held-out loss if it is due, of the weights that would be published; keep the best if asked to."""
        due = self.step % -(-self.total_steps // VALIDATIONS) == 0 or self.step == self.total_steps
        if self._validation is None or not due:
            return
        weights: dict[str, Tensor] = {**self._parameters, **self._average}
        self.validations.append((self.step, self._validation.losses(self.network, weights)))
        loss = float(np.mean(self.validations[-1][1]))
        if self.recipe.patience and math.isfinite(loss) and (self.best is None or loss < self.best[1]):
            self.best = (self.step, loss)
            self._best = {name: weight.detach().clone() for name, weight in weights.items()}

    def _check_weights(self) -> None:
        """Check loss and weights before they are saved; a step with a finite loss can still ruin a weight."""
        self._check_finite("the loss is", self._loss_sum)
        self._check_finite("a weight is", *self._parameters.values())

    def _check_finite(self, what: str, *values: Tensor) -> None:
        if not all(bool(value.isfinite().all()) for value in values):
            epoch, rate = (self.step - 1) // self.steps_per_epoch + 1, self.recipe.learning_rate
            raise TrainingError(
                f"{what} not finite at step {self.step} (epoch {epoch}); learning_rate is {rate:g}, try {rate / 10:g}"
            )

    def published(self) -> Network:
        """Return the network to publish, on the CPU: the best weights if kept, else the average or the last."""
        network = copy.deepcopy(self.network).cpu().eval().requires_grad_(False)
        weights = self._best or self._average or self._parameters
        for name, parameter in network.named_parameters():
            parameter.copy_(weights[name].detach())
        return network

    def state(self) -> tuple[dict[str, Tensor], Header]:
        """Return everything that future steps depend on, on the CPU, with its header."""
        tensors = {f"weights.{name}": p.detach() for name, p in self._parameters.items()}
        tensors |= {f"average.{name}": average for name, average in self._average.items()}
        tensors |= {f"best.{name}": weight for name, weight in self._best.items()}
        for name, p in self._parameters.items():
            tensors |= {f"adam.{key}.{name}": value for key, value in self._adam.state[p].items()}
        header = Header(
            recipe=self.recipe.hash,
            data=self._digest,
            step=self.step,
            loss_sum=self._loss_sum.item(),
            last_loss=self.last_loss,
            seconds=self.seconds,
            threads=torch.get_num_threads(),
            device=self.device.type,
            losses=self.losses,
            validations=self.validations,
            best=self.best,
        )
        return {name: tensor.cpu().contiguous() for name, tensor in tensors.items()}, header

    def restore(self, tensors: dict[str, Tensor], header: Header) -> None:
        """Restore a state. Values are copied into the run's own tensors, to keep their memory alignment.

        Raises:
            StateError: the state belongs to other data, lacks a tensor, or is of a step that this run does not have.
        """
        if header.data != self._digest:
            raise StateError("the saved state was trained on different data")
        epochs = header.step // self.steps_per_epoch
        if header.step > self.total_steps or len(header.losses) != epochs:
            raise StateError(
                f"the saved state says step {header.step} with the losses of {len(header.losses)} epochs; this run has "
                f"{self.total_steps} steps, {self.steps_per_epoch} an epoch: delete the state to train from the start"
            )
        try:
            for name, parameter in self._parameters.items():
                parameter.data.copy_(tensors[f"weights.{name}"])
                if self._average:
                    self._average[name].copy_(tensors[f"average.{name}"])
                if header.best is not None:
                    self._best[name] = torch.empty_like(parameter).copy_(tensors[f"best.{name}"]).detach()
                for key in _MOMENTS if header.step else ():
                    value = tensors[f"adam.{key}.{name}"]
                    if key == "step" and value != header.step:
                        raise StateError(f"the saved state says step {header.step}, and its tensors step {value:g}")
                    self._adam.state[parameter][key] = torch.empty_like(value, device=self.device).copy_(value)
        except (KeyError, RuntimeError) as error:
            raise StateError(f"the saved state does not fit this network: {error}") from None
        self.losses, self.validations, self.best = list(header.losses), list(header.validations), header.best
        self.step, self.seconds, self.last_loss = header.step, header.seconds, header.last_loss
        self._loss_sum.fill_(header.loss_sum)
