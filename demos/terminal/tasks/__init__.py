"""The tasks of the demo, the longest first. The last two are those that set A never sees."""

from . import (
    api_rename,
    archive_verify,
    asset_bundle,
    csv_join,
    date_parser,
    dead_links,
    duplicate_files,
    invoice_tests,
    json_events,
    log_report,
    lru_cache,
    matrix_tests,
    secret_scan,
    site_build,
)
from .base import Files, Say, Task, Turn, say, turn

__all__ = ["TASKS", "Files", "Say", "Task", "Turn", "say", "turn"]

TASKS: tuple[Task, ...] = tuple(
    module.TASK
    for module in (
        csv_join,
        json_events,
        log_report,
        duplicate_files,
        matrix_tests,
        archive_verify,
        invoice_tests,
        dead_links,
        site_build,
        secret_scan,
        date_parser,
        api_rename,
        asset_bundle,
        lru_cache,
    )
)
