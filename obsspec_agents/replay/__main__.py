"""``python -m obsspec_agents.replay FILE``: play a recording from the command line."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from typing import get_args

from obsspec_agents.errors import ObsSpecError
from obsspec_agents.replay.server import Unknown, serve


def main() -> int:
    """Serve until interrupted; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m obsspec_agents.replay", description=__doc__)
    parser.add_argument("recording", metavar="FILE")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--pace", type=float, default=1.0, help="factor on recorded times")
    parser.add_argument("--unknown", choices=get_args(Unknown), default="error")
    parser.add_argument("--with-stdin", action="store_true", help="stop when standard input ends")
    parser.add_argument("--allow-remote", action="store_true", help="allow any --host")
    options = parser.parse_args()
    if options.with_stdin:
        threading.Thread(target=_stop_with_stdin, daemon=True).start()
    del options.with_stdin

    def ready(url: str) -> None:
        print(url, flush=True)

    try:
        serve(**vars(options), ready=ready)
    except ObsSpecError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _stop_with_stdin() -> None:
    """Whoever started the server is gone, however it went."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
