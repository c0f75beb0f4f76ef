"""An archive of 800 files, many of them copied by a sync that went wrong."""

import random

from .base import Files, Task, say, tarball, turn

__all__ = ["TASK"]

FOLDERS = ("bills", "garden", "letters", "music", "recipes", "school", "travel")
TEXT = ["again", "before", "car", "door", "each", "found", "green", "house", "late", "mill"]


def _files() -> Files:
    rng = random.Random("duplicate-files")
    tree = {}
    for number in range(650):
        words = " ".join(rng.choices(TEXT, k=40))
        folder = rng.choice(FOLDERS)
        tree[f"inbox/{folder}/{number % 12:02d}/note-{number:04d}.txt"] = f"{number:04d} {words}\n"
    names = sorted(tree)
    for name in rng.sample(names, 105):
        tree[name.replace(".txt", " (copy).txt")] = tree[name]
    for name in rng.sample(names, 36):
        tree[f"inbox/{rng.choice(FOLDERS)}/old/{rng.randrange(10**6):06d}.bak"] = tree[name]
    for folder in FOLDERS:
        tree[f"inbox/{folder}/.keep"] = ""
    return {"inbox.tar.gz": tarball(tree)}


_UNPACK = (
    "tar xmzf inbox.tar.gz --no-same-owner && find inbox -type f -printf '%s\\n' | "
    'awk \'{n++; sum += $1} END {print n, "files,", sum, "bytes"}\' && ls inbox'
)
_SUMS = (
    "find inbox -type f -print0 | sort -z | xargs -0 -n 20 sha256sum > sums.txt && "
    "sort sums.txt | uniq -w64 -D > same.txt; "
    'echo "$(wc -l < same.txt) files in $(cut -c1-64 same.txt | uniq | wc -l) groups"; '
    "cut -c1-64 same.txt | uniq -c | awk '{print $1}' | sort -n | uniq -c | "
    "awk '{print $1, \"groups of\", $2}'"
)
_SHOW = (
    "empty=$(sha256sum < /dev/null | cut -c1-64); grep $empty same.txt | cut -c67-; "
    "grep -v $empty same.txt | head -n 6 | cut -c1-8,65-"
)
_PLAN = (
    "cat > plan.py <<'EOF'\n"
    "import hashlib, os\n"
    "\n"
    "kept, remove, size = {}, [], 0\n"
    "paths = [os.path.join(d, f) for d, _, files in os.walk('inbox') for f in files]\n"
    "# originals before copies, copies before backups\n"
    "paths.sort(key=lambda path: (path.endswith('.bak'), '(copy)' in path, path))\n"
    "for path in paths:\n"
    "    with open(path, 'rb') as file:\n"
    "        data = file.read()\n"
    "    if data and kept.setdefault(hashlib.sha256(data).digest(), path) != path:\n"
    "        remove.append(path)\n"
    "        size += len(data)\n"
    "with open('remove.txt', 'w') as file:\n"
    "    file.writelines(path + '\\n' for path in sorted(remove))\n"
    "print(f'{len(remove)} to remove, {size} bytes')\n"
    "for end in ('(copy).txt', '.bak', '.keep'):\n"
    "    print(end, sum(path.endswith(end) for path in remove))\n"
    "EOF\n"
    "python3 plan.py && shuf -n 2 --random-source=<(yes) remove.txt | sort"
)
_REMOVE = (
    "tr '\\n' '\\0' < remove.txt | xargs -0 -n 8 rm && find inbox -type f | wc -l && "
    "find inbox -type f -size +0 -print0 | sort -z | xargs -0 -n 20 sha256sum | sort | "
    "uniq -w64 -d | wc -l"
)
_VERIFY = (
    "python3 - <<'EOF'\n"
    "import hashlib, os, tarfile\n"
    "\n"
    "digest = lambda data: hashlib.sha256(data).digest()\n"
    "with tarfile.open('inbox.tar.gz') as archive:\n"
    "    before = {digest(archive.extractfile(m).read()) for m in archive if m.isfile()}\n"
    "paths = [os.path.join(d, f) for d, _, files in os.walk('inbox') for f in files]\n"
    "now = {digest(open(path, 'rb').read()) for path in paths}\n"
    "keep = sum(path.endswith('.keep') for path in paths)\n"
    "print(f'{len(before)} contents before, {len(now)} now, {len(before - now)} lost')\n"
    "print(f'{keep} placeholders')\n"
    "EOF"
)
_REPORT = (
    '{ echo "$ROLLOUT_ID removed $(wc -l < remove.txt) duplicates:"; '
    "tr '\\n' '\\0' < remove.txt | xargs -0 -n 4 dirname | sort | uniq -c | sort -k1,1nr -k2 | "
    "head -n 5; } > removed-$ROLLOUT_ID.txt && cat removed-$ROLLOUT_ID.txt"
)

TASK = Task(
    name="duplicate-files",
    prompt="A sync copied many files in inbox.tar.gz. Unpack it, remove the duplicates by content "
    "but lose nothing, and leave a report of what was removed.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I unpack the archive and measure it: number of files, their size, and the folders "
                "at the top.",
                _UNPACK,
            ),
            say(
                "First unpack, then count, so that I can tell afterwards what became of each file.",
                _UNPACK,
            ),
        ),
        turn(
            say(
                "{{files}} files. I'll take the SHA-256 of each, keep the list, and see how many "
                "have a sum that occurs more than once.",
                _SUMS,
            ),
            say(
                "With {{files}} small files hashing all of them is cheap. The sums that occur "
                "twice or more are the duplicates.",
                _SUMS,
            ),
            say(
                "{{files}} files to compare. The names may tell what the sync did, so I look at "
                "their endings before I hash anything.",
                "find inbox -type f | sed -E 's/.*\\(copy\\).txt$/(copy)/; s/.*(\\.[a-z]+)$/\\1/' "
                "| sort | uniq -c | sort -rn",
                then=(
                    turn(
                        say(
                            "{{copies}} are called copies and others are backups, but a name "
                            "proves nothing. Now the contents, by SHA-256.",
                            _SUMS,
                        ),
                        copies=r"(\d+) \(copy\)",
                    ),
                ),
            ),
            files=r"(\d+) files",
        ),
        turn(
            say(
                "That makes {{groups}} groups with equal content. One of them has seven members, "
                "as many as there are folders; let me see that one and a few others.",
                _SHOW,
            ),
            say(
                "{{groups}} groups, most of them pairs. Before anything is deleted I want to see "
                "examples, and whether empty files are among them.",
                _SHOW,
            ),
            groups=r"in (\d+) groups",
        ),
        turn(
            say(
                "{{keep}} and its like are empty on purpose: they keep folders alive and stay. For "
                "the rest a script picks the original by name and lists the others.",
                _PLAN,
            ),
            say(
                "The empty ones, like {{keep}}, are placeholders and no duplicates in any useful "
                "sense. I'll plan the removal: keep the original name, list copies and backups.",
                _PLAN,
            ),
            say(
                "{{keep}} must stay, it is a placeholder. Do the copies always lie beside their "
                "original? I'll count the folders of each group first, then plan.",
                'awk \'{sum = $1; sub(/^[^ ]+ +/, ""); sub(/\\/[^\\/]*$/, ""); print sum, $0}\' '
                "same.txt | sort -u | cut -c1-64 | uniq -c | awk '{print $1}' | sort | uniq -c; "
                + _PLAN,
            ),
            keep=r"(inbox/\w+/\.keep)",
        ),
        turn(
            say(
                "{{remove}} files can go, none of them a placeholder. I remove them, and then no "
                "two files with content should be equal.",
                _REMOVE,
            ),
            say(
                "The list has {{remove}} names, all copies or backups. Deleting them now; after "
                "that I count what is left and what is still double.",
                _REMOVE,
            ),
            say(
                "{{remove}} files are on the list. Deleting can't be undone, so I check first that "
                "nothing on it lacks a twin that stays.",
                "cut -c67- sums.txt | grep -vxF -f remove.txt | tr '\\n' '\\0' | "
                "xargs -0 -n 20 sha256sum | cut -c1-64 | sort -u > stay.txt; "
                "tr '\\n' '\\0' < remove.txt | xargs -0 sha256sum | grep -vcF -f stay.txt",
                then=(
                    turn(
                        say(
                            "{{alone}} files on the list are without a twin, so nothing gets lost. "
                            "Now I remove them and count again.",
                            _REMOVE,
                        ),
                        alone=r"^(\d+)",
                    ),
                ),
            ),
            remove=r"(\d+) to remove",
        ),
        turn(
            say(
                "{{left}} files are left and none of them is double. As proof that no content got "
                "lost I compare the sums of all files with those of the archive's members.",
                _VERIFY,
            ),
            say(
                "Down to {{left}} files without a duplicate. Reading the archive once "
                "more, member by member, shows whether every content is still there.",
                _VERIFY,
            ),
            left=r"^(\d+)",
        ),
        turn(
            say(
                "{{contents}} different contents before and after, and all placeholders are in "
                "place. The report, under this rollout's name, says which folders lost most.",
                _REPORT,
            ),
            say(
                "Nothing is missing: {{contents}} contents in both trees. Last the report with the "
                "folders that had most of the copies.",
                _REPORT,
            ),
            contents=r"^(\d+)",
        ),
        turn(
            say(
                "Finished: {{removed}} duplicates are removed and every content is still there "
                "once. The report lists the folders that had most of them."
            ),
            say(
                "The inbox is free of duplicates; {{removed}} files went, checked against "
                "the archive. Empty .keep files were left alone."
            ),
            removed=r"removed (\d+) duplicates",
        ),
    ),
)
