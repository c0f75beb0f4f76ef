"""The tasks of the demo. The last two are those that set A never sees."""

from . import (
    api_rename,
    asset_bundle,
    date_parser,
    dead_links,
    invoice_tests,
    log_report,
    lru_cache,
    secret_scan,
    site_build,
)
from .base import Files, Say, Task, Turn, say, turn

__all__ = ["TASKS", "Files", "Say", "Task", "Turn", "say", "turn"]

TASKS: tuple[Task, ...] = tuple(
    module.TASK
    for module in (
        api_rename,
        asset_bundle,
        date_parser,
        dead_links,
        invoice_tests,
        log_report,
        lru_cache,
        secret_scan,
        site_build,
    )
)
