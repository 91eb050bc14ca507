"""``python -m studies.fleet``: overhead of balancers and scaling of bulk jobs, in three minutes on an idle machine.

``python -m studies.fleet plan``: measured latencies of a live service and planned ones, in four minutes.
``python -m studies.fleet routers``: latencies behind routers, on a simulated clock, in three minutes.
"""

from __future__ import annotations

import argparse
import sys

from studies.fleet import bulk, plans, proxies, routers, running

PARTS = {
    "nginx": "nginx",
    "ray": "Ray, its proxy",
    "haproxy": "Ray, HAProxy",
    "haproxy-requests": "Ray, HAProxy, by requests",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m studies.fleet", description=__doc__)
    known = [*PARTS, "bulk", "plan", "routers"]
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"{', '.join(known)}; default: all but plan and routers"
    )
    parser.add_argument("--service", metavar="URL", help="plan: an idle service (default: start one)")
    parser.add_argument("--model", default="moons", help="plan: model of the service (moons)")
    parser.add_argument("--seconds", type=float, default=15.0, help="plan: seconds per load (15)")
    parser.add_argument("--detail", action="store_true", help="plan: also print the service's own timings")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(known):
        parser.error(f"{', '.join(sorted(unknown))}: unknown; choose from {', '.join(known)}")
    parts = options.parts or known[:-2]
    met = True
    if names := [name for part, name in PARTS.items() if part in parts]:
        met &= proxies.table(names)
    if "bulk" in parts:
        met &= bulk.table()
    if "routers" in parts:
        met &= routers.table()
    if "plan" in parts:
        if options.service:
            met &= plans.table(options.service, options.model, options.seconds, options.detail)
        else:
            with running.service() as url:
                met &= plans.table(url, options.model, options.seconds, options.detail)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
