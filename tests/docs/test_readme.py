"""The README's examples, against a real service with a small model under the name it uses."""

import json
import re

import httpx

from tests.docs.conftest import ROOT, Programs, blocks

README = ROOT / "README.md"


def test_the_curl_request_gets_the_members_that_are_shown(service: str) -> None:
    [command], [answer] = blocks(README, "sh"), blocks(README, "json")
    body = re.search(r"-d '(.*)'", command)
    assert body is not None
    found = httpx.post(
        f"{service}/v1/sample", content=body.group(1), headers={"Content-Type": "application/json"}, timeout=60
    ).json()
    shown = json.loads(answer)
    assert shown.keys() <= found.keys()
    for name in shown.keys() - {"samples"}:
        assert found[name] == shown[name]


def test_the_python_examples_print_what_is_shown(programs: Programs) -> None:
    [shown] = blocks(README, "text")
    assert programs.printed["README 0"].splitlines()[:4] == shown.splitlines()[:4]
    assert "SUCCESS" in programs.printed["README 1"]


def test_links_lead_somewhere() -> None:
    for page in [README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}, which is not there"
