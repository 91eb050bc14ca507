"""Exported networks: evaluated by onnxruntime (the extra `onnx`), for CPU networks without a fused form.

A network that was loaded from a checkpoint is exported in a separate process: it takes seconds, most of them with
Python's lock held. That process is `python -m models.forms.onnx FOLDER FILE`.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import warnings
from functools import cache
from hashlib import sha256
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.conditions import tensors_of
from models.conventions import Adapted
from models.forms.form import FormKind
from models.messages import first_line
from models.network import Network
from models.noise import noise
from models.regular import remove_stale, write_atomically
from models.shapes import sized
from models.velocity import check_float32

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
"""What the extra `onnx` installs."""

MISSING = "the extra `onnx`, with which onnxruntime evaluates it, is not installed"
"""Why a network that could be exported is not."""

_EXPORT_S = 300.0
_log = logging.getLogger("pathline")
_MAX_FILES = 16


class ExportError(RuntimeError):
    """A network could not be exported; the message is one line."""


def can_export(network: Network[Any]) -> str | None:
    """Return why a network is not exported, or None. The rule looks only at the network and at what is installed."""
    if any(isinstance(size, str) for size in network.event_shape):
        return "a network with free axes is not exported"
    if network.condition is not None and (network.condition.single is None or network.condition.axes):
        return "a network with named conditions is not exported"
    tensors = [*network.parameters(), *network.buffers()]
    states = getattr(network.config, "dtype", "float32")
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors if tensor.is_floating_point()} | {states}
    if dtypes != {"float32"}:
        return f"weights are {', '.join(sorted(dtypes))}; only float32 is exported"
    if any(tensor.device.type != "cpu" for tensor in tensors):
        return "only networks on the CPU are exported"
    if getattr(network, "rows", (1, None)) != (1, None):
        return "a program with a limit on its rows is not exported"
    return None if all(map(find_spec, PACKAGES)) else MISSING


def make(network: Network[Any], folder: Path, digest: str) -> OnnxField:
    """Return the exported form of a network.

    Args:
        network: a network of a checkpoint.
        folder: the checkpoint's.
        digest: the checkpoint's hash.
    """
    try:
        return OnnxField(network, _exported(folder, digest))
    except ExportError:
        raise
    except Exception as error:  # onnxruntime's errors have no common class
        path = _place(digest)
        _log.warning("%s cannot be used (%s); the network is exported anew", path, first_line(error))
        path.unlink(missing_ok=True)
        return OnnxField(network, _exported(folder, digest))


MAKER = FormKind("onnx", can_export, make, "the network could not be exported", "exported", missing=MISSING)
"""The exported form in the table of forms."""


class OnnxField:
    """A network as onnxruntime evaluates it, with as many threads as torch has now."""

    def __init__(self, network: Network[Any], model: bytes) -> None:
        """Make a session of an ONNX model, as `python -m models.forms.onnx` writes it."""
        import onnxruntime  # pyright: ignore[reportMissingImports]  (an extra)

        onnxruntime.disable_telemetry_events()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = torch.get_num_threads(), 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # idle threads must not use the cores
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._names = [entry.name for entry in self._session.get_inputs()]
        self.event_shape, self.condition = network.event_shape, network.condition
        self.cpu_rows = getattr(network, "cpu_rows", None)

    def __call__(self, x: Tensor, t: Tensor, condition: Tensor | None = None) -> Tensor:
        """Evaluate float32 states on the CPU, as a `VelocityField`.

        Raises:
            VelocityError: states, times or conditions have another shape or dtype, or a label is out of range.
        """
        check_float32(x, t, self.event_shape)
        arguments = (x, t, *tensors_of(self.condition, condition, x))
        feed = {name: tensor.contiguous().numpy() for name, tensor in zip(self._names, arguments, strict=True)}
        return torch.from_numpy(self._session.run(None, feed)[0])


def export(network: Network[Any], to: Path) -> None:
    """Write a network as ONNX, with any number of rows."""
    takes, rows = network.condition, torch.export.Dim("rows")
    shown = () if takes is None else (takes.examples(3, torch.float32),)
    arguments = (noise(0, 0, 3, sized(network.event_shape, {}), torch.float32), torch.linspace(0.0, 1.0, 3), *shown)
    shapes = tuple({0: rows} for _ in arguments)
    with torch.no_grad():
        program = torch.onnx.export(network, arguments, dynamo=True, dynamic_shapes=shapes, verbose=False)
    assert program is not None  # noqa: S101  (it is, unless a file is named)
    to.write_bytes(program.model_proto.SerializeToString())


def _place(digest: str) -> Path:
    """Where the exported network of a checkpoint is kept, for each version of the software that makes it.

    It is never read from the checkpoint's folder: a file there could be any other network.
    """
    parts = [text.encode() for text in (digest, torch.__version__, *(f"{name} {version(name)}" for name in PACKAGES))]
    parts += [source.read_bytes() for source in sorted(Path(__file__).parents[1].rglob("*.py"))]
    name = sha256(b"\0".join(parts)).hexdigest()
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(__file__).parent / "__pycache__") / "onnx"
    return folder / f"{name[:32]}.onnx"


def _exported(folder: Path, digest: str) -> bytes:
    """The exported network of a checkpoint, made at most once."""
    path = _place(digest)
    try:
        os.utime(path)  # the newest are kept
        return path.read_bytes()
    except OSError:
        pass
    with tempfile.TemporaryDirectory() as apart:
        model = Path(apart) / "network.onnx"
        _in_a_process(folder, model)
        content = model.read_bytes()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)
        remove_stale(path.parent.glob(".*.part"))  # also those of other versions
        for old in sorted(path.parent.glob("*.onnx"), key=lambda file: file.stat().st_mtime)[:-_MAX_FILES]:
            old.unlink()
    except OSError as error:
        _log.info("%s: cannot be written (%s); each load exports the network again", path.parent, error.strerror)
    return content


def _in_a_process(folder: Path, to: Path) -> None:
    """Export the network of a checkpoint in a separate process, with the priority of the calling thread.

    Raises:
        ExportError: it failed, or took too long.
    """
    command = [sys.executable, "-m", "models.forms.onnx", str(folder), str(to)]
    paths = [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}
    try:
        done = subprocess.run(  # noqa: S603  (our own interpreter and module)
            command, env=environment, capture_output=True, text=True, timeout=_EXPORT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ExportError(f"not done after {_EXPORT_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        raise ExportError(lines[-1].strip() if lines else f"exit {done.returncode}")


@cache
def installed() -> dict[str, str]:
    """The versions of what evaluates exported networks; empty if it is not installed."""
    try:
        return {"onnxruntime": version("onnxruntime")}
    except PackageNotFoundError:
        return {}


def main(folder: str, file: str) -> int:
    """Export the network of a checkpoint; on failure, say why in one line."""
    from models.checkpoint.loading import load

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
