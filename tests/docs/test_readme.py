"""The README's examples, against a real service with a small model under the name it uses."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_curl_request_gets_the_members_that_are_shown(service: str) -> None:
    [command], [answer] = blocks("sh"), blocks("json")
    body = re.search(r"-d '(.*)'", command)
    assert body is not None
    found = httpx.post(
        f"{service}/v1/sample", content=body.group(1), headers={"Content-Type": "application/json"}, timeout=60
    ).json()
    shown = json.loads(answer)
    assert shown.keys() <= found.keys()
    for name in shown.keys() - {"samples"}:
        assert found[name] == shown[name]


def test_the_python_examples_print_what_is_shown(service: str) -> None:
    outputs = []
    for code in blocks("python"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PATHLINE_URL": service},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    [shown] = blocks("text")
    assert outputs[0].splitlines()[:4] == shown.splitlines()[:4]
    assert "SUCCESS" in outputs[1]


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
