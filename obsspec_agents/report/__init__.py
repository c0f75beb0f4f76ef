"""Tables, timelines, summaries and comparisons of what was hidden and what it cost."""

from obsspec_agents.report.summary import Summary
from obsspec_agents.report.table import RunRow, comparison_table
from obsspec_agents.report.timeline import Span, spans, timeline
from obsspec_agents.report.transcripts import (
    Difference,
    Transcript,
    first_difference,
    transcript,
)

__all__ = [
    "Difference",
    "RunRow",
    "Span",
    "Summary",
    "Transcript",
    "comparison_table",
    "first_difference",
    "spans",
    "timeline",
    "transcript",
]
