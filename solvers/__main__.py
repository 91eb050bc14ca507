"""``python -m solvers``: print the catalogue as a table, as in docs/solvers.md."""

from solvers import catalogue


def table() -> str:
    """Return the catalogue as a Markdown table, one row per solver."""
    head = ("name", "kind", "order", "error estimate", "stages", "FSAL", "stable to", "NFE", "reference")
    rows = [head, tuple("-" * len(word) for word in head)]
    for solver in catalogue.solvers().values():
        facts = solver.describe()
        embedded = facts["embedded_order"]
        rows.append(
            (
                f"`{facts['name']}`",
                str(facts["kind"]),
                str(facts["order"]),
                "none" if embedded is None else f"of order {embedded}",
                str(facts["stages"]),
                "yes" if facts["fsal"] else "no",
                "depends on t" if facts["stability_limit"] is None else f"{facts['stability_limit']:.4g}",
                str(facts["cost"]),
                str(facts["reference"]),
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


if __name__ == "__main__":
    print(table())
