"""Run in an environment that has the wheel with the extra ``demo``."""

import subprocess
import sys

from obsspec_agents.demos.terminal.environment import TASKS
from obsspec_agents.demos.terminal.script import recording_lines

assert len(TASKS) >= 14, len(TASKS)
assert next(iter(recording_lines()))["format"] == "obsspec-recording"

broken = subprocess.run(
    [sys.executable, "-m", "obsspec_agents", "replay", "missing.jsonl"],
    capture_output=True,
    text=True,
    check=False,
)
assert broken.returncode == 2, broken
assert "missing.jsonl" in broken.stderr, broken.stderr

help_text = subprocess.run(
    ["obsspec", "demo", "--help"],
    capture_output=True,
    text=True,
    check=False,
    env={"PATH": str(sys.prefix) + "/bin", "COLUMNS": "100"},
).stdout
assert "--tool-rtt" in help_text, help_text
print("ok")
