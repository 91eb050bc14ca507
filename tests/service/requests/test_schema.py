"""The whole OpenAPI description against a real process: no server error, and no status that it does not name."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

from tests.service.serving import serving

KEY = "the-key-of-a-test-0123456789abcdef"


def test_schemathesis(repository: Path, tmp_path: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "st"
    checks = ["--checks", "not_a_server_error,status_code_conformance", "--phases", "examples,coverage,fuzzing"]
    bounds = [
        "--max-examples",
        "2",
        "--seed",
        "1",
        "--request-timeout",
        "120",  # the first log-density of a model waits for its network to be measured
        "--no-color",
        "-H",
        f"X-API-Key: {KEY}",
    ]
    limits = {  # enough time on a busy machine, as a 504 is a server error too
        "admin_key": KEY,
        "max_samples": "200",
        "max_steps": "100",
        "max_nfe": "500",
        "timeout_s": "90",
        "max_timeout_s": "90",
    }
    # a model that cannot be loaded is answered 503, as it should be
    copy = shutil.copytree(repository, tmp_path / "models", ignore=shutil.ignore_patterns("broken"))
    with serving(copy, **limits) as (url, _):
        # unloading last: a model that is loaded again is a 504 for a time limit of 5e-324 s
        for chosen in ("--exclude-path-regex", "--include-path-regex"):
            command = [str(program), "run", f"{url}/openapi.json", chosen, ":unload$", *checks, *bounds]
            done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "generated" in done.stdout
