"""Run every benchmark there is: `python -m benchmarks`, or `python -m benchmarks.solvers` for one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ON_REQUEST = {"soak"}
"""Parts with a make target of their own."""


def main() -> int:
    here = Path(__file__).parent
    parts = sorted(path.parent.name for path in here.glob("*/__main__.py"))
    failed = []
    for part in parts:
        if part not in ON_REQUEST:
            print(f"== benchmarks.{part}", flush=True)
            if subprocess.run([sys.executable, "-m", f"benchmarks.{part}"], check=False).returncode:
                failed.append(part)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
