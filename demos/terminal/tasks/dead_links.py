"""Several hundred pages of notes with a few links that lead nowhere."""

import random

from .base import Files, Task, say, tarball, turn

__all__ = ["TASK"]

TOPICS = ("backup", "dns", "mail", "network", "printing", "storage", "vpn", "wiki")
TEXT = "check the state of the unit and note who changed what before you restart it".split()  # noqa: SIM905


def _files() -> Files:
    rng = random.Random("dead-links")
    names = [f"notes/{topic}/n{number:03d}.md" for topic in TOPICS for number in range(60)]
    tree = {}
    for name in names:
        lines = [f"# {name.removesuffix('.md')}"]
        for _ in range(14):
            target = rng.choice(names).removeprefix("notes/")
            lines.append(f"{' '.join(rng.choices(TEXT, k=22))} [see](../{target}).")
        tree[name] = "\n".join(lines) + "\n"
    for name, target in (
        ("notes/dns/n007.md", "../dns/resolver.md"),
        ("notes/mail/n031.md", "../dns/resolver.md"),
        ("notes/vpn/n052.md", "../vpn/n520.md"),
    ):
        tree[name] += f"Old notes: [see]({target}).\n"
    tree["notes/dns/n060-resolver.md"] = "# resolver\n"
    return {"notes.tar.gz": tarball(tree)}


_UNPACK = "tar xzf notes.tar.gz && find notes -name '*.md' | wc -l"
_CHECK = (
    "cat > check.py <<'EOF'\n"
    "import os, re, glob\n"
    "links = dead = 0\n"
    "for page in sorted(glob.glob('notes/**/*.md', recursive=True)):\n"
    "    for number, line in enumerate(open(page), 1):\n"
    "        for target in re.findall(r'\\]\\(([^)#]+)', line):\n"
    "            links += 1\n"
    "            if not os.path.exists(os.path.join(os.path.dirname(page), target)):\n"
    "                dead += 1\n"
    "                print(f'{page}:{number}: {target}')\n"
    "print(f'{links} links, {dead} dead')\n"
    "EOF\n"
    "python3 check.py"
)
_SPOT = (
    "page=$(find notes -name '*.md' | sort | shuf -n 1 --random-source=<(yes $ROLLOUT_SEED)); "
    "echo $page; cd $(dirname $page); grep -oE '\\]\\([^)]+' $(basename $page) | cut -c3- | "
    "sort -u | xargs wc -w | sed -n 1,4p"
)

TASK = Task(
    name="dead-links",
    prompt="Find the dead links in the notes (notes.tar.gz), repair them, and leave a script that "
    "checks all links.",
    make_files=_files,
    turns=(
        turn(
            say("Unpacking the notes and counting the pages comes first.", _UNPACK),
            say(
                "I'll unpack the archive. How many pages are there to check?",
                _UNPACK,
            ),
        ),
        turn(
            say(
                "{{pages}} pages, and their links are relative. A short script can resolve each "
                "link against the page that it stands on.",
                _CHECK,
            ),
            say(
                "For {{pages}} pages I want a script that stays: it goes through every link and "
                "says which of them have no file behind them.",
                _CHECK,
            ),
            say(
                "{{pages}} pages. What kinds of links do they have? The distinct targets by folder "
                "give me an idea.",
                "grep -rhoE '\\]\\([^)]+' notes | cut -d/ -f2 | sort | uniq -c | sort -rn",
                then=(
                    turn(
                        say(
                            "All are relative links to other folders, {{most}} into the largest. "
                            "A script resolves them.",
                            _CHECK,
                        ),
                        most=r"(\d+) \w",
                    ),
                ),
            ),
            pages=r"(\d+)",
        ),
        turn(
            say(
                "{{dead}} dead links; two of them want a resolver page. Is there a page of that "
                "name anywhere else?",
                "find notes -name '*resolver*' | sort; grep -rln 'resolver' notes | sort",
            ),
            say(
                "The script counts {{dead}} dead ones. resolver.md may have been renamed, so I "
                "search for it by name and by content.",
                "find notes -name '*resolver*' | sort; grep -rln 'resolver' notes | sort",
            ),
            say(
                "{{dead}} dead links. I'll look for anything that has resolver in its name.",
                "find notes -name '*resolver*' | sort",
            ),
            dead=r"(\d+) dead",
        ),
        turn(
            say(
                "It is {{page}} now. I'll point both links to it and run the check again.",
                "sed -i 's|(../dns/resolver.md)|(../dns/n060-resolver.md)|' notes/dns/n007.md "
                "notes/mail/n031.md && python3 check.py",
            ),
            say(
                "So the page became {{page}}. I replace the old name wherever it stands; after "
                "that I repeat the check.",
                "grep -rl '/resolver.md' notes | "
                "xargs sed -i 's|/resolver.md|/n060-resolver.md|' && "
                "python3 check.py",
            ),
            page=r"notes/dns/(n060-resolver\.md)",
        ),
        turn(
            say(
                "Only {{rest}} is left. The folder has no n520, but n052 is the page itself: "
                "let me see the context of the link.",
                "tail -n 3 notes/vpn/n052.md; ls notes/vpn | tail -2",
            ),
            say(
                "One remains, {{rest}}. The vpn folder can't have that many pages. I'll read the "
                "end of the page and the last names in the folder.",
                "tail -n 3 notes/vpn/n052.md; ls notes/vpn | tail -2",
            ),
            rest=r": (\.\./vpn/\S+)",
        ),
        turn(
            say(
                "The folder ends at {{last}}, and `Old notes` points at nothing that still exists. "
                "I'll drop that line and check a last time.",
                "sed -i '/n520.md/d' notes/vpn/n052.md && python3 check.py",
            ),
            say(
                "{{last}} is the last page, so n520 is gone for good. The line with that link can "
                "go, too.",
                "sed -i '/n520.md/d' notes/vpn/n052.md && python3 check.py",
            ),
            say(
                "With {{last}} at the end, n520 looks like a typing error for n052's neighbour "
                "n051. I'll link to that one.",
                "sed -i 's/n520.md/n051.md/' notes/vpn/n052.md && python3 check.py",
            ),
            last=r"(n05\d\.md)\s*$",
        ),
        turn(
            say(
                "No dead link is left among {{links}}. I'll follow the links of a page that my "
                "seed picks, to see that the script is right about them.",
                _SPOT,
            ),
            say(
                "All {{links}} links lead somewhere now. To be sure of the script itself, I look "
                "at one page at random and at its links.",
                _SPOT,
            ),
            links=r"(\d+) links, 0 dead",
        ),
        turn(
            say(
                "The links of {{page}} are fine, as the script says of all pages. check.py stays "
                "beside the notes and can be run at any time."
            ),
            say(
                "{{page}} agrees with the script. Two links pointed to a renamed page, one to a "
                "page that never was; check.py repeats the test."
            ),
            page=r"(notes/\w+/\S+\.md)",
        ),
    ),
)
