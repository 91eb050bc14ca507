"""The states x and stored velocities K of all lanes: what both `host` and `device` offer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from solvers.bank import Bank
from solvers.clocks import Flags, Index, Numbers, Records


@dataclass(frozen=True)
class Attempts:
    """What the data say about the ends of m steps under error control.

    Attributes:
        after: (m, D) the new states.
        sums: (m,) sums over D of the squared scaled error; not finite where a stage or the new state is not.
        rho: (m,) estimates of the Jacobian's largest eigenvalue (Hairer & Wanner II, IV.2, p. 22), or not finite.
        constant: (m,) whether all stage velocities are bit-identical.
    """

    after: Tensor
    sums: Numbers
    rho: Numbers
    constant: Flags


class States(ABC):
    """x (n, D) and K (n, S, D) of n lanes; one row a lane.

    Every operation works on each lane in an order fixed by the lane alone, so its last bit cannot depend on the others.
    """

    def __init__(self, width: int, slots: int, dtype: torch.dtype, device: torch.device | str) -> None:
        self.x = torch.empty((0, width), dtype=dtype, device=device)
        self.k = torch.empty((0, slots, width), dtype=dtype, device=device)
        self._moved()

    @abstractmethod
    def query(self, lanes: Records, bank: Bank) -> tuple[Tensor, Tensor]:
        """Where the network is asked: fresh tensors x + h sum_s a[s] K[s] (n, D) and t + c h (n,)."""

    @abstractmethod
    def receive(self, v: Tensor, lanes: Records, bank: Bank, kinds: Index) -> int:
        """Store the velocities v (n, D) and move the lanes to their next rows, see `clocks.next_rows`."""

    @abstractmethod
    def advance(self, index: Index, lanes: Records, bank: Bank) -> tuple[Tensor, Flags]:
        """Ends of fixed steps: (m, D) the new states x + h sum_s b[s] K[s], and (m,) whether they are finite."""

    @abstractmethod
    def attempt(self, index: Index, lanes: Records, bank: Bank) -> Attempts:
        """Ends of steps under error control."""

    @abstractmethod
    def slopes(self, index: Index, lanes: Records) -> tuple[Numbers, Numbers]:
        """(m,) sums of squares of the scaled state and the scaled first velocity; NaN where one is not finite."""

    @abstractmethod
    def change(self, index: Index, lanes: Records) -> Numbers:
        """(m,) sums of squares of the scaled change of the velocity over the trial step."""

    @abstractmethod
    def settle(self, index: Index, after: Tensor, accepted: Flags, lanes: Records, bank: Bank) -> None:
        """Move accepted lanes to their new state, the last velocity becoming the first (FSAL); wipe the others."""

    def wipe(self, index: Index) -> None:
        """Overwrite velocities after the first with zeros: a stale infinity times a zero weight would be NaN."""
        if len(index):
            self.k[torch.from_numpy(index).to(self.k.device), 1:] = 0.0

    def admit(self, starts: list[Tensor]) -> None:
        """Add lanes with states (m, D)."""
        # Adding zero makes -0.0 a +0.0: with that, adding a zero-weighted slot never changes a bit.
        new = torch.cat([start.to(self.x.device, self.x.dtype) for start in starts]) + 0.0
        fresh = self.k.new_zeros((len(new), *self.k.shape[1:]))
        self.x, self.k = torch.cat([self.x, new]), torch.cat([self.k, fresh])
        self._moved()

    def take(self, gone: Index, stay: Index) -> Tensor:
        """Take lanes out and close the gaps; gives their states."""
        out, left = (torch.from_numpy(index).to(self.x.device) for index in (gone, stay))
        x = self.x.index_select(0, out)
        self.x, self.k = self.x.index_select(0, left), self.k.index_select(0, left)
        self._moved()
        return x

    def _moved(self) -> None:  # noqa: B027  (there is something to do for some only)
        """Called when x and K are other tensors than before."""
