"""From a version on disk to one that can be asked for samples."""

import weakref
from pathlib import Path

from models.architectures import PROGRAM
from models.checkpoint.loading import CheckpointError, load, read_card
from service.ports import Engine
from service.registry.served import Served


def load_version(engine: Engine, name: str, version: int, folder: Path, allow_programs: bool) -> Served:
    """Load and verify a checkpoint, give it to the engine, and have the engine let it go when nobody holds it any more.

    Args:
        engine: what solves.
        name, version: under which it is asked for.
        folder: its files.
        allow_programs: whether it may be an imported program.

    Raises:
        CheckpointError: the checkpoint is not sound, or a program where none is allowed. What its network raises passes
            through.
    """
    if not allow_programs and read_card(folder).architecture.name == PROGRAM:
        raise CheckpointError(f"{name}/{version}: is a program; set PATHLINE_ALLOW_PROGRAMS=true to serve it")
    checkpoint = load(folder, engine.device)
    loaded = engine.load(name, version, checkpoint)
    served = Served.of(name, version, checkpoint, loaded.deterministic, loaded.path, loaded.path_reason)
    weakref.finalize(served, engine.unload, loaded).atexit = False
    return served
