"""``python -m studies.fleet``: overhead of balancers and scaling of bulk jobs, in three minutes on an idle machine."""

from __future__ import annotations

import argparse
import sys

from studies.fleet import bulk, proxies

PARTS = {
    "nginx": "nginx",
    "ray": "Ray, its proxy",
    "haproxy": "Ray, HAProxy",
    "haproxy-requests": "Ray, HAProxy, by requests",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.fleet", description=__doc__)
    known = [*PARTS, "bulk"]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(known)}; default: all")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: unknown; choose from {', '.join(known)}")
    parts = options.parts or known
    met = True
    if names := [name for part, name in PARTS.items() if part in parts]:
        met &= proxies.table(names)
    if "bulk" in parts:
        met &= bulk.table()
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
