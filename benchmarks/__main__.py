"""`python -m benchmarks`: runs all packages here, like `benchmarks.solvers`, and no modules, like `benchmarks.soak`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> int:
    here = Path(__file__).parent
    parts = sorted(path.parent.name for path in here.glob("*/__main__.py"))
    failed = []
    for part in parts:
        print(f"== benchmarks.{part}", flush=True)
        if subprocess.run([sys.executable, "-m", f"benchmarks.{part}"], check=False).returncode:
            failed.append(part)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
