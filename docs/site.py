"""Hooks of the documentation site: what GitHub shows by relative links, the site must show another way.

The SDK's README becomes the page `sdk.md`. A link to a file of the repository that is not a page becomes the file's
path in plain text; tests/docs follow those links.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_SDK = "clients/python/README.md"
_OUTSIDE = re.compile(r"\[([^\]]+)\]\((?:\.\./)+([^)#]+)(#[^)]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the SDK's page."""
    text = (Path(config.config_file_path).parent / _SDK).read_text("utf-8")
    files.append(File.generated(config, "sdk.md", content=text.replace("](../../docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links that leave the documentation to the SDK's page, or show the path."""

    def shown(found: re.Match[str]) -> str:
        text, path, anchor = found.groups()
        if path == _SDK:
            return f"[{text}](sdk.md{anchor or ''})"
        return f"`{path}`" if text.strip("`") == path else f"{text} (`{path}`)"

    return _OUTSIDE.sub(shown, markdown)
