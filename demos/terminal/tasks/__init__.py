"""The tasks of the demo. The last two are those that set A never sees."""

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
    make_pipeline,
    matrix_tests,
    secret_scan,
    site_build,
    word_index,
)
from .base import Files, Say, Task, Turn, say, turn

__all__ = ["TASKS", "Files", "Say", "Task", "Turn", "say", "turn"]

TASKS: tuple[Task, ...] = tuple(
    module.TASK
    for module in (
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
        make_pipeline,
        matrix_tests,
        secret_scan,
        site_build,
        word_index,
    )
)
