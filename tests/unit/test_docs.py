"""The code in the README and in docs/ runs, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from obsspec_agents.replay import RecordedEndpoint, Recording

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(code, id=f"{page.name}-{number}")
    for page in PAGES
    for number, code in enumerate(
        re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    )
]

RECORDING = Path(__file__).with_name("docs_recording.jsonl")


@pytest.mark.parametrize("code", BLOCKS)
def test_documented_code_runs(
    code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with RecordedEndpoint(Recording.load(RECORDING)).threaded() as endpoint:
        monkeypatch.setenv("OPENAI_BASE_URL", endpoint.url)
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        names: dict[str, object] = {}
        exec(compile(code, "<docs>", "exec"), names)
        if "app.invoke" in code:
            assert "s hidden" in capsys.readouterr().out
            assert endpoint.requests >= 2
        if "speculator.step" in code:
            assert names["answer"].text == "It is a word."  # type: ignore[attr-defined]


def test_no_page_has_a_blank_to_fill_in() -> None:
    for page in PAGES:
        assert not re.search(r"@[A-Z_]+@|TODO|TBD", page.read_text("utf-8")), page.name


def test_the_pages_have_code() -> None:
    assert len(BLOCKS) >= 6


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
