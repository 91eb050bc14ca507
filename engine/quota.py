"""The CPU time that the system grants this process: a quota of its control group, as containers have."""

import math
from pathlib import Path

_ROOT, _OWN = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def cpu_quota(root: Path = _ROOT, own: Path = _OWN) -> float:
    """Return the CPUs' worth of time of this process's control groups, version 1 or 2; infinite without a quota.

    Args:
        root: where control groups are mounted.
        own: the file that names those of this process.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:  # not Linux
        return math.inf
    quotas = [math.inf]
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        top = root / "cpu" if controllers else root
        inside = Path(path.lstrip("/"))  # in a container, the group may be mounted at the top
        quotas += [_quota(top / each) for each in (inside, *inside.parents)]
    return min(quotas)


def _quota(group: Path) -> float:
    try:
        if (group / "cpu.max").exists():
            quota, period = (group / "cpu.max").read_text().split()
        else:
            quota, period = ((group / f"cpu.cfs_{name}_us").read_text().strip() for name in ("quota", "period"))
        return math.inf if quota in ("max", "-1") else int(quota) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return math.inf
