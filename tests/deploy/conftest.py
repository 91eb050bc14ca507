"""The Dockerfile, read once for all tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """Read the Dockerfile as (word, rest) pairs, comments dropped and continued lines joined."""
    lines = [line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = "\n".join(lines).replace("\\\n", "")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


@pytest.fixture(scope="session")
def stages() -> list[list[Instruction]]:
    """Return the instructions of each stage; the first of each is its FROM."""
    found: list[list[Instruction]] = []
    for word, rest in instructions():
        if word == "FROM":
            found.append([])
        found[-1].append((word, rest))
    return found
