"""A Makefile that bundles scripts for the web: a file that moved, a bundle over budget."""

import random

from .base import Files, Task, say, turn

__all__ = ["TASK"]

MAKEFILE = """\
APP = app/router.js app/menu.js app/search.js app/table.js
VENDOR = $(sort $(wildcard vendor/*.js))
FLAGS =
MAX = 46000

all: out/app.js.gz out/vendor.js.gz

out/app.js: $(APP) minify.py
\t@mkdir -p out && python3 minify.py $(FLAGS) $(APP) > $@

out/vendor.js: $(VENDOR) minify.py
\t@mkdir -p out && python3 minify.py $(FLAGS) $(VENDOR) > $@

out/%.gz: out/%
\t@gzip -9nk -f $< && echo "$@ $$(wc -c < $@) bytes"

budget: all
\t@for f in out/*.gz; do \\
\t  test $$(wc -c < $$f) -le $(MAX) || { echo "over budget: $$f"; exit 1; }; done
\t@echo "within budget"

manifest: budget
\t@(echo "# built by $(ROLLOUT_ID)"; cd out && sha256sum *.gz | cut -c1-16,65-) > manifest.txt
"""

MINIFY = '''\
"""Joins scripts and takes out what a browser doesn't need: minify.py [--strip] FILE..."""

import re
import sys

names = [name for name in sys.argv[1:] if not name.startswith("--")]
strip = "--strip" in sys.argv
for name in names:
    for line in open(name):
        line = re.sub(r"[ \\t]+", " ", line.strip())
        if strip:
            line = re.sub(r"\\s*//.*", "", line)
            line = re.sub(r" ?([=+(){},;<]) ?", r"\\1", line)
        if line:
            print(line)
'''


def _script(rng: random.Random, functions: int) -> str:
    lines = []
    for number in range(functions):
        a, b = rng.randrange(10**6), rng.randrange(10**6)
        note = " ".join(f"{rng.randrange(16**4):04x}" for _ in range(12))
        lines += [
            f"// {note}",
            f"function f{number}_{a:x} (row, index) {{",
            f"    const step = row.length * {a} + index ;   // {note[:24]}",
            f"    return step < {b} ? row.slice (index, step) : null ;",
            "}",
        ]
    return "\n".join(lines) + "\n"


def _files() -> Files:
    rng = random.Random("asset-bundle")
    files: Files = {"Makefile": MAKEFILE, "minify.py": MINIFY}
    for name in ("router", "nav", "search", "table"):
        files[f"app/{name}.js"] = _script(rng, 240)
    for number in range(10):
        files[f"vendor/lib{number:02d}.js"] = _script(rng, 130)
    return files


_STRIP = "sed -i 's/^FLAGS =.*/FLAGS = --strip/' Makefile && make -B budget 2>&1"

TASK = Task(
    name="asset-bundle",
    prompt="Build the web assets so that `make budget` is satisfied, then write the manifest.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll try the build right away. If something is missing, make will name it.",
                "make budget 2>&1",
            ),
            say(
                "To begin with I run the target that the task asks for and see how far it comes.",
                "make budget 2>&1",
            ),
            say(
                "I'll read the Makefile before I run it, to know which bundles there are and how "
                "large they may be.",
                "cat Makefile",
                then=(
                    turn(
                        say(
                            "A bundle may have {{budget}} bytes after compression. Now let me see "
                            "what the build says.",
                            "make budget 2>&1",
                        ),
                        budget=r"MAX = (\d+)",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "There is no rule for {{missing}}, so a source must have been renamed or removed. "
                "What does the app folder hold, and who else mentions the name?",
                "wc -c app/*.js; grep -n menu Makefile",
            ),
            say(
                "make looks for {{missing}}, which doesn't seem to exist. I'll list the folder and "
                "the line of the Makefile that wants it.",
                "wc -c app/*.js; grep -n menu Makefile",
            ),
            say(
                "{{missing}} is missing. The folder's listing should show under which name it "
                "lives today.",
                "ls app; grep -n menu Makefile",
            ),
            missing=r"'(app/\w+\.js)'",
        ),
        turn(
            say(
                "The folder has {{found}} but no menu.js: it was renamed. I'll correct the list in "
                "the Makefile and build again.",
                "sed -i 's|app/menu.js|app/nav.js|' Makefile && make budget 2>&1",
            ),
            say(
                "menu.js is called {{found}} now. One word in the Makefile, then the next attempt.",
                "sed -i 's/menu/nav/' Makefile && make budget 2>&1",
            ),
            found=r"(nav\.js)",
        ),
        turn(
            say(
                "It builds, but {{large}} is over the budget. How much of the sources is comment? "
                "minify.py may have an option for that.",
                "head -12 minify.py; cat app/*.js vendor/*.js | grep -c '//'",
            ),
            say(
                "Over budget: {{large}}. I'd like to see what minify.py can do, and how many "
                "comments the sources carry.",
                "head -12 minify.py; cat app/*.js vendor/*.js | grep -c '//'",
            ),
            say(
                "{{large}} exceeds the budget. Let me see in the code of minify.py which switches "
                "it understands.",
                "grep -n 'strip' minify.py",
            ),
            large=r"over budget: (\S+)",
        ),
        turn(
            say(
                "It has {{switch}}, which drops comments and blanks and is not used yet. I'll set "
                "it in FLAGS and rebuild everything.",
                _STRIP,
            ),
            say(
                "{{switch}} takes out comments. The Makefile leaves FLAGS empty, so I fill it in "
                "and force a full build.",
                _STRIP,
            ),
            say(
                "{{switch}} is what I need. I'll try it on the command line first, without a "
                "change to the Makefile, to see what it gains.",
                "make -B budget FLAGS=--strip 2>&1",
                then=(
                    turn(
                        say(
                            "That takes vendor.js.gz down to {{size}} bytes, well within the "
                            "budget. So it goes into the Makefile for good.",
                            _STRIP,
                        ),
                        size=r"vendor\.js\.gz (\d+) bytes",
                    ),
                ),
            ),
            switch=r"(--strip)",
        ),
        turn(
            say(
                "vendor.js.gz has {{size}} bytes now and the budget holds. What remains is the "
                "manifest with the checksums.",
                "make manifest && cat manifest.txt",
            ),
            say(
                "Within budget, with {{size}} bytes for the vendor bundle. I'll write the manifest "
                "and look at it.",
                "make manifest && cat manifest.txt",
            ),
            size=r"vendor\.js\.gz (\d+) bytes",
        ),
        turn(
            say(
                "The assets are built and within budget; manifest.txt, stamped {{stamp}}, lists "
                "both bundles with their checksums."
            ),
            say(
                "Ready. I corrected a renamed source, turned on --strip, and the manifest of "
                "{{stamp}} is written."
            ),
            stamp=r"# built by (\S+)",
        ),
    ),
)
