"""What lies beside the weights of a loaded version and may change while it is loaded: its tuned plans."""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from models.checkpoint.plans import PlansError, read_plans
from models.repository import Signature
from solvers.tuned import TunedPlans

_log = logging.getLogger("pathline")


@dataclass(frozen=True)
class Beside:
    """The files beside the weights, as they were read.

    Attributes:
        plans: solvers tuned for this checkpoint; None where there are none that can be used.
        plans_fault: why a file of plans that is there cannot be used; empty if it can.
        signature: the files, which tells whether they have changed since.
    """

    plans: TunedPlans | None = None
    plans_fault: str = ""
    signature: Signature = ()

    @classmethod
    def read(cls, name: str, version: int, folder: Path, weights_sha256: str, signature: Signature) -> Self:
        """Read what there is; a fault is logged and kept, as the model is served without."""
        plans, fault = None, ""
        try:
            found = read_plans(folder, weights_sha256)
            plans = None if found is None else found.tuned()
        except PlansError as error:
            fault = str(error).replace(f"{folder}/", "")
            _log.warning("model %s version %d is served without its tuned plans: %s", name, version, fault)
        return cls(plans, fault, signature)

    def describe(self) -> dict[str, Any]:
        """Return what the service tells of it."""
        return {"tuned": [] if self.plans is None else self.plans.texts, "tuned_fault": self.plans_fault}


NOTHING = Beside()
"""No file beside the weights."""
