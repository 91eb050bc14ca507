"""The whole OpenAPI description against a real process: no server error, and no status that it does not name."""

import shutil
import subprocess
import sysconfig
from pathlib import Path

import httpx

from tests.service.serving import serving

KEY = "the-key-of-a-test-0123456789abcdef"


def make_ready(url: str) -> None:
    """Ask each model once for each operation; it refuses those that it does not have."""
    with httpx.Client(base_url=url, headers={"X-API-Key": KEY}, timeout=120, trust_env=False) as http:
        for line in http.get("/v1/models").json()["models"]:
            solver = {"solver": "rk4-2", "max_nfe": 10}
            drawn = http.post("/v1/sample", json={"model": line["name"], "num_samples": 1, **solver})
            assert drawn.status_code == 200, drawn.text
            data = {"samples": drawn.json()["samples"], **solver}
            for operation, body in (("encode", data), ("log_prob", data), ("diagnose", {"num_samples": 1})):
                answer = http.post(f"/v1/models/{line['name']}/{operation}", json=body)
                assert answer.status_code in (200, 422), answer.text


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
    # A time limit of 5e-324 s has passed before anything is done, and then 504 is the right answer.
    (tmp_path / "schemathesis.toml").write_text(
        '[checks]\nnot_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "504"]\n'
    )
    limits = {
        "admin_key": KEY,
        "max_samples": "200",
        "max_steps": "100",
        "max_nfe": "500",
        "timeout_s": "90",
        "max_timeout_s": "90",
    }
    # A model that cannot be loaded is answered 503, as it should be.
    copy = shutil.copytree(repository, tmp_path / "models", ignore=shutil.ignore_patterns("broken"))
    shutil.rmtree(copy / "moons" / "1")
    with serving(copy, **limits) as (url, _):
        make_ready(url)
        # unloading last, as a model is loaded again
        for chosen in ("--exclude-path-regex", "--include-path-regex"):
            command = [str(program), "run", f"{url}/openapi.json", chosen, ":unload$", *checks, *bounds]
            done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=tmp_path)
            assert done.returncode == 0, done.stdout + done.stderr
            assert "generated" in done.stdout
