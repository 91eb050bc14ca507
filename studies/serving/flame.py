"""`python -m studies.serving.flame`: flame graphs of the service's threads under workloads, as SVG.

py-spy samples the stacks of the running service. It needs permission to trace other processes of the same user: root,
or `kernel.yama.ptrace_scope=0`.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from studies.serving.load import run_round
from studies.serving.servers import ROOT, Running, server
from studies.serving.workloads import WORKLOADS

PY_SPY = Path(sys.executable).with_name("py-spy")
_RATE = 250
"""Samples per second."""


def draw(service: Running, name: str, seconds: int, out: Path) -> None:
    """Write the flame graph of a service under a workload.

    Raises:
        RuntimeError: py-spy failed; the message is its output.
    """
    run_round(service, WORKLOADS[name], 2.0, 0)
    recording = ["record", "--pid", str(service.pid), "--rate", str(_RATE), "--duration", str(seconds)]
    shown = ["--threads", "--output", str(out)]
    spy = subprocess.Popen([str(PY_SPY), *recording, *shown], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    run_round(service, WORKLOADS[name], seconds + 1.0, 1)
    errors = spy.communicate()[1].decode()
    if spy.returncode:
        raise RuntimeError(f"py-spy: {errors.strip()}")
    # The title is py-spy's command line; leave out the paths of this machine.
    out.write_text(out.read_text().replace(str(PY_SPY), PY_SPY.name).replace(str(out), out.name))


def main() -> int:
    """Draw the graphs and print where they are."""
    parser = argparse.ArgumentParser(prog="python -m studies.serving.flame", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["a", "e"], help=f"{', '.join(WORKLOADS)} (default: a e)")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/moons/1"))
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--out", type=Path, default=ROOT / "studies" / "serving", help="folder for flame-NAME.svg")
    arguments = parser.parse_args()
    if not PY_SPY.is_file():
        parser.error(f"there is no {PY_SPY}; pip install -c constraints.txt '.[benchmarks]' installs it")
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[-1]})
    with server("pathline", arguments.checkpoint.resolve(), cores[0]) as service:
        for name in arguments.workloads:
            out = arguments.out / f"flame-{name}.svg"
            draw(service, name, arguments.seconds, out)
            print(f"{out}: {out.stat().st_size / 1000:.0f} KB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
