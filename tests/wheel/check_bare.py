"""Run in an environment that has the bare wheel and nothing else."""

import importlib.metadata
import importlib.resources
import subprocess
import sys

import obsspec_agents

assert "site-packages" in obsspec_agents.__file__, obsspec_agents.__file__
for name in obsspec_agents.__all__:
    assert hasattr(obsspec_agents, name), name
assert importlib.resources.files("obsspec_agents").joinpath("py.typed").is_file()

heavy = {"torch", "vllm", "starlette", "uvicorn", "langchain_openai", "ray", "trl", "verl"}
assert not heavy & set(sys.modules), heavy & set(sys.modules)

speculator = obsspec_agents.Speculator()
speculator.close()


def obsspec(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "obsspec_agents", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


assert "demo" in obsspec("--help").stdout
missing = obsspec("demo")
assert missing.returncode == 2, missing
assert "pip install 'obsspec-agents[demo]'" in missing.stderr, missing.stderr
assert missing.stdout == "", missing.stdout
missing = obsspec("replay", "nothing.jsonl")
assert missing.returncode == 2, missing
assert "pip install 'obsspec-agents[replay]'" in missing.stderr, missing.stderr

wheel = importlib.metadata.metadata("obsspec-agents")
assert wheel["License-Expression"] == "Apache-2.0", wheel["License-Expression"]
print("ok")
