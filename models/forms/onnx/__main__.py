"""`python -m models.forms.onnx FOLDER FILE`: write the network of a checkpoint as ONNX."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

from models.checkpoint.loading import load
from models.conventions import Adapted
from models.forms.onnx import export
from models.messages import first_line


def main(folder: str, file: str) -> int:
    """Export; on failure, say why in one line."""
    warnings.simplefilter("ignore")
    try:
        velocity = load(folder).velocity
        network: Any = velocity.network if isinstance(velocity, Adapted) else velocity
        export(network, Path(file))
    except Exception as error:  # the exporter's errors have no common class
        print(f"{type(error).__name__}: {first_line(error)}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(*sys.argv[1:]))
