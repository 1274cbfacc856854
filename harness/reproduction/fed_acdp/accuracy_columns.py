"""Accuracy columns beside the accounting columns of the same table."""

from typing import Any

from harness.papers.measured import Measured


def accuracy_columns(ours: Measured | None, paper: float) -> dict[str, Any]:
    """Our accuracy beside the printed one."""
    return {"accuracy": "-" if ours is None else str(ours), "paper acc": f"{paper:.3f}"}


def with_accuracy(accounting: list[dict[str, Any]], accuracy: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of both, the verdict last."""
    return [
        {name: value for name, value in row.items() if name != "verdict"} | columns | {"verdict": row["verdict"]}
        for row, columns in zip(accounting, accuracy, strict=True)
    ]
