"""A Makefile that renders a documentation site and stops at broken pages."""

import random

from .base import Files, Task, say, turn

__all__ = ["TASK"]

SECTIONS = ("admin", "api", "faq", "guide", "howto")

MAKEFILE = """\
SECTIONS = admin api faq guide howto
PAGES = $(SECTIONS:%=build/%.stamp)

site: $(PAGES)
\t@echo "site: $$(find build -name '*.html' | wc -l) pages"

build/%.stamp: content/% render.py
\t@python3 render.py $* && touch $@

release: site
\t@tar cf docs-$(ROLLOUT_ID).tar --sort=name --mtime=@0 --owner=0 --group=0 build
\t@gzip -9nf docs-$(ROLLOUT_ID).tar
\t@echo "release: docs-$(ROLLOUT_ID).tar.gz, $$(tar tzf docs-$(ROLLOUT_ID).tar.gz | wc -l) members"

clean:
\t@rm -rf build
"""

RENDER = '''\
"""Renders one section: content/SECTION/*.md -> build/SECTION/*.html"""

import html
import os
import re
import sys
import time

section = sys.argv[1]
start = time.perf_counter()
words = 0


def inline(text):
    text = html.escape(text)
    text = re.sub(r"`([^`]+)`", r"<code>\\1</code>", text)
    text = re.sub(r"\\*\\*([^*]+)\\*\\*", r"<b>\\1</b>", text)
    return re.sub(r"\\[([^]]+)\\]\\(([^)]+)\\)", r'<a href="\\2">\\1</a>', text)


def render(path):
    out, fence = [], 0
    for number, line in enumerate(open(path), 1):
        line = line.rstrip()
        for target in re.findall(r"\\]\\(([^)]+)\\.html\\)", line):
            if not os.path.exists(os.path.join("content", target + ".md")):
                sys.exit(f"{path}:{number}: link to {target}.html, which does not exist")
        if line.startswith("```"):
            fence = 0 if fence else number
            out.append("<pre>" if fence else "</pre>")
        elif fence:
            out.append(html.escape(line))
        elif match := re.match(r"(#+) (.*)", line):
            out.append(f"<h{len(match[1])}>{inline(match[2])}</h{len(match[1])}>")
        elif line:
            out.append(f"<p>{inline(line)}</p>")
    if fence:
        sys.exit(f"{path}: the code fence of line {fence} is never closed")
    return out


os.makedirs(f"build/{section}", exist_ok=True)
names = sorted(os.listdir(f"content/{section}"))
for name in names:
    page = render(f"content/{section}/{name}")
    words += sum(len(line.split()) for line in page)
    with open(f"build/{section}/{name[:-3]}.html", "w") as file:
        file.write("\\n".join(page))
print(f"{section}: {len(names)} pages, {words} words in {time.perf_counter() - start:.2f}s")
'''

TEXT = (
    "the server keeps a queue of jobs and each worker takes one when it is free so that "
    "`status` shows **busy** until the result is written to the store of its project"
)
WORDS = TEXT.split()


def _files() -> Files:
    rng = random.Random("site-build")
    files: Files = {"Makefile": MAKEFILE, "render.py": RENDER}
    for section in SECTIONS:
        for number in range(1, 13):
            lines = [f"# {section} {number}"]
            for part in range(27):
                lines += [f"## Part {part}", " ".join(rng.choices(WORDS, k=60))]
                lines += [f"See [more]({rng.choice(SECTIONS)}/p{rng.randint(1, 12):02d}.html)."]
            lines += ["```", "jobs status --all", "```"]
            files[f"content/{section}/p{number:02d}.md"] = "\n".join(lines) + "\n"
    broken = str(files["content/faq/p11.md"])
    files["content/faq/p11.md"] = broken.removesuffix("```\n")
    linked = str(files["content/guide/p05.md"])
    files["content/guide/p05.md"] = linked + "Old: [setup](guide/setup.html)\n"
    return files


_SPOT = (
    "find build -name '*.html' | sort | shuf -n 2 --random-source=<(yes $ROLLOUT_SEED) | "
    "xargs head -n 2 | cut -c1-90"
)

TASK = Task(
    name="site-build",
    prompt="`make site` stops with an error. Get the documentation site to build and make a "
    "release of it with `make release`.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll run the build as it is. Make stops at the first error, so this shows me "
                "where it goes wrong and which sections are fine.",
                "make site 2>&1",
            ),
            say(
                "Let me reproduce the failure before anything else: a plain `make site`, with the "
                "errors in line with the output.",
                "make site 2>&1",
            ),
            say(
                "First I want to know what the build consists of: the targets in the Makefile and "
                "the number of pages that they render.",
                "cat Makefile; find content -name '*.md' | wc -l",
                then=(
                    turn(
                        say(
                            "A section is one target, and there are {{pages}} pages. Now the "
                            "failing build itself.",
                            "make site 2>&1",
                        ),
                        pages=r"(?m)^(\d+)$",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "The build stops at {{page}}: a code fence that is opened in line {{line}} and "
                "never closed. Let me look at the end of that page.",
                "tail -n 5 content/faq/p11.md | cut -c1-80",
            ),
            say(
                "{{page}} has an open code fence since line {{line}}. I'll print the last lines "
                "to see whether only the closing fence is missing.",
                "tail -n 5 content/faq/p11.md | cut -c1-80",
            ),
            say(
                "A fence that was opened in line {{line}} of {{page}} is never closed. Is that the "
                "only page? I'll count the fences everywhere; an odd number is suspicious.",
                "grep -c '^```' -r content | awk -F: '$2 % 2' | sort; tail -n 2 content/faq/p11.md",
            ),
            page=r"(content/\w+/p\d+\.md): the code fence",
            line=r"fence of line (\d+)",
        ),
        turn(
            say(
                "The page ends right after `{{last}}`, so the closing fence got lost. I'll append "
                "it and start the build again.",
                "printf '```\\n' >> content/faq/p11.md && make site 2>&1",
            ),
            say(
                "`{{last}}` is the last line and the fence after it is missing. Adding it; make "
                "goes on where it stopped.",
                "printf '```\\n' >> content/faq/p11.md && make site 2>&1",
            ),
            last=r"(jobs status --all)",
        ),
        turn(
            say(
                "One page further: {{page}} links to {{target}}, and there is no such page. Let me "
                "see that line and what pages of the guide there are.",
                "grep -n 'setup.html' -r content | sort; ls content/guide | head -3",
            ),
            say(
                "Next problem: a link to {{target}} in {{page}}. I'll look for other links to it "
                "and for a page that could be meant.",
                "grep -n 'setup.html' -r content | sort; ls content/guide | head -3",
            ),
            page=r"(content/\w+/p\d+\.md):\d+: link",
            target=r"link to (\S+\.html)",
        ),
        turn(
            say(
                "Only line {{line}} has it, marked as old. The guide begins with p01, so I point "
                "the link there and build once more.",
                "sed -i 's|(guide/setup.html)|(guide/p01.html)|' content/guide/p05.md && "
                "make site 2>&1",
            ),
            say(
                "It is just line {{line}} of that page. The first page of the guide is the setup "
                "nowadays; I'll change the link to it and rebuild.",
                "sed -i 's|(guide/setup.html)|(guide/p01.html)|' content/guide/p05.md && "
                "make site 2>&1",
            ),
            say(
                "Line {{line}} is the only one, and it is called old. I'll delete that line rather "
                "than guess a new target, and build again.",
                "sed -i '/guide.setup.html/d' content/guide/p05.md && make site 2>&1",
            ),
            line=r"content/guide/p05\.md:(\d+):",
        ),
        turn(
            say(
                "The build is through, {{pages}} pages. Does the HTML look right? I'll take the "
                "beginning of two pages that my seed picks.",
                _SPOT,
            ),
            say(
                "No error any more and {{pages}} pages. I want to see some of the HTML before it "
                "is released, from pages chosen at random.",
                _SPOT,
            ),
            pages=r"site: (\d+) pages",
        ),
        turn(
            say(
                "The site is complete and {{page}} is rendered well. Now the release, which packs "
                "the build under the name of this rollout.",
                "make release 2>&1 | tail -1",
            ),
            say(
                "{{page}} looks as it should, and nothing is left to fix. `make release` packs "
                "the site up.",
                "make release 2>&1",
            ),
            page=r"(build/\w+/p\d+\.html)",
        ),
        turn(
            say(
                "The release {{file}} is made. Two pages were broken: an open code fence in "
                "faq/p11.md and a dead link in guide/p05.md."
            ),
            say(
                "Done: {{file}} holds the site. I closed a code fence in faq/p11.md and dealt with "
                "a dead link in guide/p05.md."
            ),
            file=r"(docs-\S+\.tar\.gz)",
        ),
    ),
)
