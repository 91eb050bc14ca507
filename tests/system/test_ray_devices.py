"""GPUs on Ray: each task and each replica gets one of its own. The machine and its two GPUs are pretended."""

import subprocess

import pytest

from tests.processes import ROOT

pytestmark = pytest.mark.system

PYTHON = ROOT / ".venv" / "fleet" / "bin" / "python"

PRELUDE = """
import os, sys, time
from pathlib import Path

os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
import ray

where = dict(include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False, configure_logging=False)
ray.init(num_cpus=4, num_gpus=2, **where)
"""

TASKS = """
from concurrent.futures import ThreadPoolExecutor
from fleet import ray_jobs

def pretend(url, options, device, shard):
    (Path(url) / f"{shard} {device} {os.environ['CUDA_VISIBLE_DEVICES']}").touch()
    while len(list(Path(url).iterdir())) < 2:  # both run at the same time
        time.sleep(0.05)

ray_jobs.make = pretend
worker = ray_jobs.OnRay(sys.argv[1], {}, 2, 1, gpu=True)
with ThreadPoolExecutor(2) as threads:
    outcomes = list(threads.map(lambda shard: worker.make(shard, print), (3, 4)))
print(outcomes, sorted(path.name for path in Path(sys.argv[1]).iterdir()))
"""

REPLICAS = """
from fleet.ray_serve import app

deployment = app({"min_replicas": 2, "gpus": 1, "threads": 1})._bound_deployment
assert deployment.ray_actor_options == {"num_cpus": 1, "num_gpus": 1}, deployment.ray_actor_options

@ray.remote
class Probe:
    def device(self):
        import torch
        from engine.device import choose_device

        torch.cuda.is_available = lambda: True
        return str(choose_device("auto")), os.environ["CUDA_VISIBLE_DEVICES"]

probes = [Probe.options(**deployment.ray_actor_options).remote() for _ in range(2)]
print(sorted(ray.get([probe.device.remote() for probe in probes])))
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the lines of the tasks and of the replicas, which use one Ray."""
    assert PYTHON.is_file(), f"{PYTHON} is missing; run: make test-system"
    command = [str(PYTHON), "-W", "ignore", "-c", PRELUDE + TASKS + REPLICAS, str(tmp_path_factory.mktemp("tasks"))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-2:]


def test_each_task_of_a_bulk_job_has_its_own_gpu(printed: list[str]) -> None:
    assert printed[0] in (
        "[None, None] ['3 cuda:0 0', '4 cuda:0 1']",
        "[None, None] ['3 cuda:0 1', '4 cuda:0 0']",
    )


def test_each_replica_has_its_own_gpu(printed: list[str]) -> None:
    assert printed[1] == "[('cuda', '0'), ('cuda', '1')]"
