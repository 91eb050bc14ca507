"""The documentation site: it builds strictly, has every page, and loads nothing from the network."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//[^>]*>")


def test_the_site_has_every_page_and_fetches_nothing(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT, check=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    pages = {path.parent.relative_to(tmp_path / "site") for path in (tmp_path / "site").rglob("index.html")}
    for source in (ROOT / "docs").rglob("*.md"):
        place = source.relative_to(ROOT / "docs")
        assert (place.parent if place.name == "README.md" else place.with_suffix("")) in pages
    assert Path("sdk") in pages
    fetched = {
        found[0]
        for page in (tmp_path / "site").rglob("*.html")
        for found in FETCHED.finditer(page.read_text("utf-8"))
        if 'rel="canonical"' not in found[0]
    }
    assert not fetched
    sdk = (tmp_path / "site" / "sdk" / "index.html").read_text("utf-8")
    assert "pathline" in sdk
    assert "../../docs/" not in sdk
