"""An archive of measurements of which some files no longer match their checksums."""

import hashlib
import random

from .base import Files, Task, say, tarball, turn

__all__ = ["TASK"]

STATIONS = ("dune", "fjord", "mesa", "reef", "ridge", "tarn")
CUT = "fjord/d07.csv"
FLIPPED = ("mesa/d13.csv", "reef/d02.csv", "tarn/d21.csv")
OTHER = "dune/d19.csv"
"""Sound in the archive, but not in the mirror."""


def _day(rng: random.Random) -> str:
    hour = [f"{rng.uniform(-20, 35):.1f};{rng.randrange(960, 1050)};" for _ in range(24)]
    rows = [f"{n % 24:02d}:00;{hour[n % 24]}ok" for n in range(3500)]
    return "\n".join(rows) + "\n"


def _files() -> Files:
    rng = random.Random("archive-verify")
    sound = {f"{s}/d{day:02d}.csv": _day(rng) for s in STATIONS for day in range(1, 25)}
    sums = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in sound.items()}
    sound["SHA256SUMS"] = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    damaged = sound | {CUT: sound[CUT][:31000]}
    for name in FLIPPED:
        text = sound[name]
        place = rng.randrange(9000, 40000)
        damaged[name] = text[:place] + "#" * rng.randint(3, 40) + text[place:]
        damaged[name] = damaged[name][: len(text)]
    mirror = sound | {OTHER: sound[OTHER].replace("ok", "??", 7)}
    del mirror["SHA256SUMS"]
    return {"store.tar.gz": tarball(damaged), "mirror.tar.gz": tarball(mirror)}


_UNPACK = (
    "mkdir -p store && tar xzf store.tar.gz -C store && find store -name '*.csv' | wc -l && "
    "cat store/*/*.csv | wc -lwc"
)
_ODD = (
    'echo "lines of another form: '
    "$(cat store/*/*.csv | grep -vcE '^[0-2][0-9]:00;-?[0-9.]+;[0-9]+;ok$')\""
)
_CHECK = (
    "cd store && sha256sum -c SHA256SUMS 2>/dev/null > ../check.txt; cd .. && "
    "grep -v ': OK$' check.txt | cut -d: -f1 | tee bad.txt && "
    'echo "$(grep -c OK check.txt) files are sound, $(wc -l < bad.txt) are not"; ' + _ODD
)
_MIRROR = (
    "mkdir -p mirror && tar xzf mirror.tar.gz -C mirror && cd mirror && "
    "sha256sum -c --quiet ../store/SHA256SUMS 2>&1; "
    "grep -Ff ../bad.txt ../store/SHA256SUMS | sha256sum -c"
)
_DIFFER = (
    "while read -r name; do "
    'echo "$name: $(wc -c < store/$name) bytes, $(diff store/$name mirror/$name | '
    "grep -c '^[<>]') lines differ\"; done < bad.txt; "
    "diff -rq store mirror | grep -c differ"
)
_RESTORE = (
    'while read -r name; do cp "mirror/$name" "store/$name"; done < bad.txt; '
    "(cd store && sha256sum -c SHA256SUMS) | cut -d: -f2 | sort | uniq -c; " + _ODD
)
_PACK = (
    "tar cf repaired-$ROLLOUT_ID.tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner "
    "-C store . && gzip -9nf repaired-$ROLLOUT_ID.tar && wc -c repaired-*.tar.gz"
)
_AGAIN = (
    "rm -rf fresh && mkdir fresh && tar xzf repaired-*.tar.gz -C fresh && cd fresh && "
    "sha256sum -c SHA256SUMS | grep -c OK; cd .. && diff -rq store fresh | wc -l; "
    "diff -rq fresh mirror"
)

TASK = Task(
    name="archive-verify",
    prompt="store.tar.gz holds measurements and their SHA256SUMS. Some files are damaged: find "
    "them, restore them from mirror.tar.gz, and pack repaired-$ROLLOUT_ID.tar.gz, verified.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll unpack the store into a directory of its own and see how many files there "
                "are, and how many lines they have together.",
                _UNPACK,
            ),
            say(
                "First the store goes into its own directory. The number of files and their size "
                "tell me what the check will have to read.",
                _UNPACK,
            ),
            say(
                "Before I unpack the store I compare the two archives by their lists: which names "
                "and sizes are not the same in both?",
                "for name in store mirror; do tar tvzf $name.tar.gz | awk '{print $3, $6}' | "
                "sort > $name.list; wc -l < $name.list; done; diff store.list mirror.list",
                then=(
                    turn(
                        say(
                            "The manifest is only in the store, and {{cut}} has another size "
                            "there. Sizes don't tell everything, so I unpack it now.",
                            _UNPACK,
                        ),
                        cut=r"> \d+ (\S+)",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "{{files}} files are unpacked. Now each one against the manifest; the names of "
                "those that don't match go into a list, and odd lines are counted.",
                _CHECK,
            ),
            say(
                "There are {{files}} files. sha256sum checks them against the manifest; the bad "
                "ones go to bad.txt. Lines that aren't measurements I count as well.",
                _CHECK,
            ),
            files=r"(?m)^(\d+)$",
        ),
        turn(
            say(
                "{{bad}} files are damaged. Before I copy anything from the mirror I check it with "
                "the same manifest: as a whole, and for those files.",
                _MIRROR,
            ),
            say(
                "That leaves {{bad}} files to restore. Can the mirror be trusted? The manifest of "
                "the store is valid for it too, so I use it there.",
                _MIRROR,
            ),
            bad=r"sound, (\d+) are not",
        ),
        turn(
            say(
                "The mirror has a bad file of its own, {{other}}, but not one of those I need. So "
                "I restore just the list, and then check the whole store again.",
                _RESTORE,
            ),
            say(
                "{{other}} is bad in the mirror, so copying everything would do harm. I'll copy "
                "only what bad.txt names and repeat the check of all files.",
                _RESTORE,
            ),
            say(
                "Only {{other}} is wrong in the mirror, and the store has that one. What happened "
                "to the damaged files? I compare them with their sound copies.",
                _DIFFER,
                then=(
                    turn(
                        say(
                            "{{cut}} was cut off, the others have a few wrong lines. All of them "
                            "come from the mirror now, and the store is checked again.",
                            _RESTORE,
                        ),
                        cut=r"(\S+): 31000 bytes",
                    ),
                ),
            ),
            other=r"(\S+): FAILED",
        ),
        turn(
            say(
                "{{sound}} files match now, which is all of them. I pack the store under the name "
                "of this rollout, with fixed order and times.",
                _PACK,
            ),
            say(
                "All {{sound}} are OK. Next the new archive: sorted names and no time stamps, so "
                "that packing it twice gives the same bytes.",
                _PACK,
            ),
            sound=r"(\d+)  ?OK",
        ),
        turn(
            say(
                "{{archive}} is written. An archive is as good as what comes out of it: I unpack "
                "it afresh, verify that, and compare it with the store and the mirror.",
                _AGAIN,
            ),
            say(
                "Last I test {{archive}} itself: unpack it elsewhere, run the manifest over it, "
                "and see that it differs from the mirror in nothing unexpected.",
                _AGAIN,
            ),
            archive=r"(repaired-\S+\.tar\.gz)",
        ),
        turn(
            say(
                "The repaired archive is verified: {{sound}} files match the manifest after "
                "unpacking. The mirror needs a repair as well, in dune/d19.csv."
            ),
            say(
                "Done. All {{sound}} files in the new archive match SHA256SUMS. Mind that the "
                "mirror is not sound either: its dune/d19.csv differs."
            ),
            sound=r"^(\d+)",
        ),
    ),
)
