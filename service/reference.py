"""``python -m service.reference``: the table of settings in docs/settings.md."""

from service.settings import Settings
from service.sources import PREFIX, shown


def table() -> str:
    """Return every setting as a row of a Markdown table: variable, key in a file, default, what is allowed."""
    rows = ["| variable | in a file | default | what it is, and what is allowed |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        rows.append(f"| `{PREFIX}{name.upper()}` | `{name}` | {shown(field.default)} | {field.description} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(table(), end="")
