"""A function renamed across several hundred modules, then checked by compiling them all."""

import random

from .base import Files, Task, say, tarball, turn

__all__ = ["TASK"]

PACKAGES = ("billing", "catalog", "jobs", "mail", "search", "users")


def _module(rng: random.Random, package: str, number: int) -> str:
    lines = [f'"""Part {number} of {package}."""', "", "from core.db import connect"]
    uses = rng.random() < 0.3
    if uses:
        lines.append("from core.db import fetch_rows")
    for part in range(8):
        table = f"{package}_{rng.randrange(40)}"
        call = "fetch_rows" if uses and part % 2 == 0 else "connect().query"
        lines += ["", "", f"def load_{part}(limit={rng.randrange(10, 500)}):"]
        lines += [f'    """The newest rows of {table}."""']
        query = f"select * from {table} order by id desc limit ?"  # noqa: S608 - never run
        lines += [f'    rows = {call}("{query}", limit)']
        lines += ["    return [dict(row) for row in rows if row is not None]"]
    return "\n".join(lines) + "\n"


def _files() -> Files:
    rng = random.Random("api-rename")
    tree = {
        f"src/{package}/part_{number:03d}.py": _module(rng, package, number)
        for package in PACKAGES
        for number in range(32)
    }
    tree["src/core/db.py"] = (
        "def connect():\n    raise NotImplementedError\n\n\n"
        "def fetch_rows(sql, *args):\n    return connect().query(sql, *args)\n"
    )
    tree["src/jobs/registry.py"] = 'HOOKS = {"rows": "core.db:fetch_rows"}\n'
    tree["docs/changes.md"] = "- 2.1: `fetch_rows` takes several arguments\n"
    return {"src.tar.gz": tarball(tree)}


_UNPACK = "tar xzf src.tar.gz && find src -name '*.py' | wc -l"
_CALLERS = (
    "grep -rlw fetch_rows src | cut -d/ -f2 | sort | uniq -c; "
    "grep -rw fetch_rows src docs | grep -v 'import\\|rows = ' | sort"
)
_RENAME = (
    "grep -rlw fetch_rows src | sort | xargs sed -i 's/\\bfetch_rows\\b/query_all/g' && "
    "grep -rlw query_all src | wc -l"
)
_COMPILE = "python3 -m compileall -qf src && find src -name '*.pyc' | wc -l"
_SPOT = (
    "grep -rlw 'rows = query_all' src | sort | shuf -n 3 --random-source=<(yes $ROLLOUT_SEED) | "
    "xargs grep -nm 2 query_all"
)

TASK = Task(
    name="api-rename",
    prompt="Unpack src.tar.gz and rename the function fetch_rows to query_all everywhere in src. "
    "Check that everything still compiles.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll unpack the archive first and count the modules, to know the size of the job.",
                _UNPACK,
            ),
            say(
                "Unpacking comes first. The number of Python files tells me whether I can do this "
                "by hand or need a script.",
                _UNPACK,
            ),
            say(
                "Let me see the archive's contents in outline before I unpack it over anything.",
                "tar tzf src.tar.gz | cut -d/ -f1,2 | sort | uniq -c",
                then=(
                    turn(
                        say(
                            "Nothing surprising, {{jobs}} files in src/jobs for one. Unpacking.",
                            _UNPACK,
                        ),
                        jobs=r"(\d+) src/jobs",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "{{modules}} modules. Which packages use the function, and is it mentioned in any "
                "way that is neither an import nor a call?",
                _CALLERS,
            ),
            say(
                "With {{modules}} files this needs sed. Before that, who uses the name, package by "
                "package, and where does it stand in a string?",
                _CALLERS,
            ),
            say(
                "{{modules}} modules it is. A plain list of the files that use the name is enough "
                "to begin with; I take the first few.",
                "grep -rlw fetch_rows src | sort | head -5; grep -rlw fetch_rows src | wc -l; "
                "grep -n fetch_rows src/jobs/registry.py",
            ),
            modules=r"(\d+)",
        ),
        turn(
            say(
                "Besides imports and calls there is `{{hook}}`, a name in a string, which has to "
                "change as well. sed on whole words does all of them.",
                _RENAME,
            ),
            say(
                "The registry refers to it by `{{hook}}`, and that must follow. I'll replace the "
                "whole word in every file under src that has it.",
                "find src -name '*.py' -exec sed -i 's/\\bfetch_rows\\b/query_all/g' {} + && "
                "grep -rlw query_all src | wc -l",
            ),
            hook=r"(core\.db:fetch_rows)",
        ),
        turn(
            say(
                "{{changed}} files changed. Compiling all modules shows whether sed left something "
                "broken behind.",
                _COMPILE,
            ),
            say(
                "That touched {{changed}} files. I'll byte-compile the whole tree; it takes a "
                "moment but finds any slip in the syntax.",
                _COMPILE,
            ),
            say(
                "{{changed}} files have the new name. Is the old one really gone, also as a part "
                "of longer words?",
                'grep -rn fetch_rows src | sort; echo "left: $(grep -rl fetch_rows src | wc -l)"',
                then=(
                    turn(
                        say("Left over: {{left}}. Then I compile the tree.", _COMPILE),
                        left=r"left: (\d+)",
                    ),
                ),
            ),
            changed=r"(\d+)",
        ),
        turn(
            say(
                "{{compiled}} modules compile. I remove the caches and look at the definition and "
                "the registry, to see the result with my own eyes.",
                "find src -name __pycache__ | xargs rm -r; "
                "grep -rn 'def query_all\\|:query_all' src | sort",
            ),
            say(
                "No errors in {{compiled}} modules. I'll clear the byte code away and check the "
                "definition and the name in the registry.",
                "find src -name __pycache__ | xargs rm -r; "
                "grep -rn 'def query_all\\|:query_all' src | sort",
            ),
            compiled=r"(\d+)",
        ),
        turn(
            say(
                "The definition is at {{place}}, and the registry has the new name. Three files "
                "that my seed picks, as a spot check of the calls.",
                _SPOT,
            ),
            say(
                "{{place}} is the definition. I also want to see a few of the calls in their "
                "context, from files chosen at random.",
                _SPOT,
            ),
            place=r"(src/\w+/\w+\.py:\d+)",
        ),
        turn(
            say(
                "That looks right ({{place}}). I hand the change over as an archive, named after "
                "this rollout.",
                "tar czf src-$ROLLOUT_ID.tar.gz src && tar tzf src-$ROLLOUT_ID.tar.gz | wc -l && "
                "ls *.tar.gz",
            ),
            say(
                "Good, {{place}} and so on. The last step is an archive of the new tree for "
                "whoever takes it from here.",
                "tar czf src-$ROLLOUT_ID.tar.gz src && tar tzf src-$ROLLOUT_ID.tar.gz | wc -l && "
                "ls *.tar.gz",
            ),
            place=r"(src/\w+/\w+\.py:\d+)",
        ),
        turn(
            say(
                "fetch_rows is query_all everywhere in src, the string in the job registry "
                "included. The tree compiles and lies in {{archive}}."
            ),
            say(
                "Renamed and compiled; {{archive}} has the result. docs/changes.md still speaks of "
                "the old name, as history should."
            ),
            archive=r"(src-\S+\.tar\.gz)",
        ),
    ),
)
