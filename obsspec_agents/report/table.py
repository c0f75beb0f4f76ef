"""Runs side by side: wall time beside hidden seconds, always."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.table import Table

from obsspec_agents.report.summary import Summary

__all__ = ["RunRow", "comparison_table"]


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run of a comparison."""

    name: str
    seconds: float
    """Wall time."""
    summary: Summary
    speculates: bool = True


def comparison_table(rows: Sequence[RunRow], *, title: str | None = None) -> Table:
    """A table with one run a column; the first is the baseline that wall times are divided by."""
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for row in rows:
        table.add_column(row.name, justify="right")
    base = rows[0].seconds if rows else 0.0
    table.add_row("wall seconds", *(f"{row.seconds:.1f}" for row in rows))
    table.add_row(
        f"  of {rows[0].name}" if rows else "",
        *(f"{row.seconds / base:.2f}" if base else "-" for row in rows),
    )
    table.add_row("tool seconds, sum", *(f"{row.summary.tool_seconds:.1f}" for row in rows))
    table.add_row(
        "waiting for the policy, sum", *(f"{row.summary.policy_seconds:.1f}" for row in rows)
    )
    for label, value in _SPECULATION:
        table.add_row(label, *(value(row.summary) if row.speculates else "-" for row in rows))
    table.add_row("tool latency, median", *(_latency(row.summary.tool_latency) for row in rows))
    return table


_SPECULATION: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("hidden seconds, sum", lambda s: f"{s.hidden_seconds:.1f}"),
    ("committed, calls seen before", lambda s: str(s.committed_seen)),
    ("committed, new calls", lambda s: str(s.committed_new)),
    ("missed", lambda s: str(s.missed)),
    ("skipped", lambda s: str(s.skipped)),
    ("tokens wasted", lambda s: str(s.wasted_tokens)),
    ("prediction latency, median", lambda s: _latency(s.prediction_latency)),
)


def _latency(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"
