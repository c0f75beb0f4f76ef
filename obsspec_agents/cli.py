"""The command line: ``obsspec``.

Results go to stdout, progress and errors to stderr; with ``--json`` stdout holds JSON alone.
Exit codes: 0 done, 1 the run says no (transcripts differ), 2 a parameter or the machine
can't, 130 interrupted.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from obsspec_agents.errors import MissingExtraError, ObsSpecError
from obsspec_agents.report import comparison_table, timeline

if TYPE_CHECKING:
    from obsspec_agents.demos.terminal.demo import DemoResult

__all__ = ["app", "main"]

app = typer.Typer(
    help="Hide the time a LangGraph agent spends waiting for its tools.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)

_STAGES = {
    "A": "set A, run once and logged",
    "off": "set B, off",
    "cold": "set B, cold",
    "warm": "set B, warm",
}


@app.callback()
def _common() -> None:
    pass


@app.command()
def demo(
    *,
    tool_rtt: Annotated[
        float, typer.Option(help="Seconds that a remote sandbox adds to each command.")
    ] = 1.0,
    concurrency: Annotated[
        int | None, typer.Option(help="Rollouts at a time; by default 10 a core.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where logs and traces go; by default a new one here.")
    ] = None,
    policy_url: Annotated[
        str | None, typer.Option(help="A real OpenAI-compatible server for the policy.")
    ] = None,
    policy_model: Annotated[str, typer.Option(help="The policy's name there.")] = "policy-8b",
    world_model_url: Annotated[
        str | None, typer.Option(help="A real server for the world model, asked after recall.")
    ] = None,
    world_model: Annotated[str, typer.Option(help="The world model's name there.")] = "world-model",
    api_key: Annotated[
        str, typer.Option(help="For both servers.", envvar="OBSSPEC_API_KEY", show_default=False)
    ] = "EMPTY",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Run a terminal agent off, cold and warm, and compare.

    The commands are real. Unless --policy-url names a server, the policy's responses were
    written by us: they are played by a recorded endpoint at 60 tokens/s, not sampled from a
    model.
    """
    _needs("langchain_openai", "demo", "obsspec demo")
    from obsspec_agents.demos.terminal.demo import Demo

    place = folder or Path("obsspec-runs") / time.strftime("demo-%Y%m%d-%H%M%S")
    with _progress() as report:
        result = asyncio.run(
            Demo(
                folder=place,
                round_trip_s=tool_rtt,
                concurrency=concurrency,
                policy_url=policy_url,
                policy_model=policy_model,
                world_model_url=world_model_url,
                world_model=world_model,
                api_key=api_key,
                report=report,
            ).run()
        )
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        _show_demo(result, tool_rtt, written=policy_url is None)
    if not result.identical:
        raise typer.Exit(1)


def _show_demo(result: DemoResult, tool_rtt: float, *, written: bool) -> None:
    from obsspec_agents.demos.terminal.environment import NORMALIZERS

    runs = result.runs
    count = len(runs[0].transcripts)
    title = f"{count} rollouts of set B, {result.concurrency} at a time"
    out.print()
    out.print(comparison_table([run.row for run in runs], title=title))
    if written:
        out.print(
            "The policy's responses were written by us and played at 60 tokens/s; "
            "they are not sampled from a model. The commands and their times are real."
        )
    out.print(
        f"Tool round trip: {tool_rtt:g} s added to every command, in all runs. "
        f"Normalised in all runs: {', '.join(n.name for n in NORMALIZERS)}."
    )
    out.print(
        "Sums are over rollouts, which run at the same time. Cold starts empty and learns from "
        "the siblings that run beside it; warm knows the log of set A and learns nothing more. "
        "Two tasks are not in A."
    )
    rollout = result.shown_rollout()
    out.print(f"\nThe rollout in which warm hid the most, {escape(rollout)}:")
    shown = [(run.name, run.spans(rollout)) for run in (runs[0], runs[-1])]
    out.print(timeline(shown, width=max(40, min(out.width - 25, 110))), markup=False)
    out.print()
    if result.identical:
        out.print(f"All {count} transcripts are identical in all runs, message by message.")
    else:
        out.print("The transcripts DIFFER. The first difference, off above:")
        out.print(str(result.difference), markup=False, highlight=False)
    names = ",".join(run.name for run in runs)
    place = f"Traces: {result.folder}/{{{names}}}/trace.jsonl"
    out.print(place, markup=False, highlight=False, soft_wrap=True)


@app.command()
def replay(
    recording: Annotated[Path, typer.Argument(help="A recording: JSON Lines, maybe .gz.")],
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 takes a free one.", min=0, max=65535)] = 0,
    pace: Annotated[float, typer.Option(help="Factor on recorded times; 0: none.", min=0)] = 1.0,
    unknown: Annotated[
        str, typer.Option(help="'error': refuse; 'nearest': answer with the nearest recording.")
    ] = "error",
    allow_remote: Annotated[bool, typer.Option(help="Allow any --host.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False,
) -> None:
    """Serve recorded responses as an OpenAI-compatible endpoint, until interrupted."""
    from obsspec_agents.replay import serve

    if unknown not in ("error", "nearest"):
        raise typer.BadParameter(f"{unknown!r} is neither 'error' nor 'nearest'")

    def ready(url: str) -> None:
        print(json.dumps({"url": url}) if as_json else url, flush=True)
        err.print("Ctrl-C stops it.")

    serve(
        recording,
        host=host,
        port=port,
        pace=pace,
        unknown=unknown,  # type: ignore[arg-type]
        allow_remote=allow_remote,
        ready=ready,
    )


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Progress on stderr: bars on a terminal, a line now and then elsewhere."""
    if err.is_terminal:
        columns = (
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=err) as bars:
            tasks = {name: bars.add_task(text, start=False) for name, text in _STAGES.items()}

            def show(stage: str, done: int, of: int) -> None:
                if done == 0:
                    bars.start_task(tasks[stage])
                bars.update(tasks[stage], completed=done, total=of)
                if done == of:
                    bars.stop_task(tasks[stage])

            yield show
        return
    begun = last = time.monotonic()

    def tell(stage: str, done: int, of: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done in (0, of) or now - last > 5:
            last = now
            print(f"[{now - begun:6.1f} s] {_STAGES[stage]}: {done}/{of}", file=sys.stderr)

    yield tell


def _needs(module: str, extra: str, purpose: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise MissingExtraError(module, extra, purpose)


def _terminated(number: int, frame: object) -> None:
    """End as after Ctrl-C, so that all that was started is closed."""
    raise SystemExit(128 + number)


def main() -> None:
    """Run the command line; errors of ours are one line on stderr."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    try:
        app()
    except KeyboardInterrupt:
        err.print("interrupted")
        sys.exit(130)
    except ObsSpecError as error:
        err.print(f"[red]error:[/red] {escape(str(error))}", soft_wrap=True)
        sys.exit(2)
    except ExceptionGroup as group:
        first: BaseException = group
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not isinstance(first, ObsSpecError):
            raise
        err.print(f"[red]error:[/red] {escape(str(first))}", soft_wrap=True)
        sys.exit(2)
