"""Access keys that slipped into a tree of configuration files."""

import random

from .base import Files, Task, say, tarball, turn

__all__ = ["TASK"]

SERVICES = ("api", "auth", "cart", "feed", "geo", "mail", "pay", "stock", "track", "web")
LEAKS = {
    ("pay", 17): "aws_key = AKIAQ7XJ2M4T9ZKLP3WD",
    ("geo", 42): "token = ghp_0a1B2c3D4e5F6g7H8i9J0kLmNoPqRsTuVwXy",
    ("mail", 88): "aws_key = AKIAEXAMPLEEXAMPLE12",
    ("web", 5): "aws_key = AKIA5RT8WQ2YBN6CVX1S",
}


def _files() -> Files:
    rng = random.Random("secret-scan")
    tree = {}
    for service in SERVICES:
        for number in range(90):
            lines = [f"[{service}-{number:03d}]"]
            options = [(rng.randrange(1000), rng.randbytes(9).hex()) for _ in range(24)]
            lines += [f"option_{option:03d} = {value}" for option, value in options]
            if leak := LEAKS.get((service, number)):
                lines.insert(rng.randrange(4, 20), leak)
            tree[f"conf/{service}/node-{number:03d}.ini"] = "\n".join(lines) + "\n"
    return {"conf.tar.gz": tarball(tree)}


_UNPACK = "tar xzf conf.tar.gz && ls conf | wc -l && find conf -type f | wc -l"
_SCAN = "grep -rnE 'AKIA[0-9A-Z]{16}|ghp_[0-9A-Za-z]{36}' conf | sort"
_REDACT = (
    "grep -rlE 'AKIA[0-9A-Z]{16}|ghp_[0-9A-Za-z]{36}' conf | grep -v mail/ | sort | "
    "tee found.txt | xargs sed -i -E 's/(AKIA|ghp_)[0-9A-Za-z]{16,36}/\\1REDACTED/' && "
    "xargs grep -n REDACTED < found.txt"
)
_SPOT = (
    "find conf -type f | sort | shuf -n 2 --random-source=<(yes $ROLLOUT_SEED) | xargs head -n 4"
)

TASK = Task(
    name="secret-scan",
    prompt="Search the configuration in conf.tar.gz for leaked AWS keys and GitHub tokens, redact "
    "real ones in place and write a report without the secrets.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I unpack the configuration and count what there is: services and files.",
                _UNPACK,
            ),
            say(
                "First the archive. I want to know how many files the search has to cover.",
                _UNPACK,
            ),
            say(
                "Let me unpack the archive and see the layout of one service as an example.",
                "tar xzf conf.tar.gz && ls conf && find conf -type f | wc -l",
            ),
        ),
        turn(
            say(
                "{{files}} files. Both kinds of secrets have a fixed form: AKIA and 16 capitals "
                "or digits, ghp_ and 36 letters or digits. One grep finds both.",
                _SCAN,
            ),
            say(
                "That makes {{files}} files to search. AWS key ids begin with AKIA, GitHub tokens "
                "with ghp_; the length is fixed, so there should be no false hits.",
                _SCAN,
            ),
            say(
                "{{files}} files. I'll begin with the AWS key ids alone, by file, and take the "
                "tokens after that.",
                "grep -rlE 'AKIA[0-9A-Z]{16}' conf | sort",
                then=(
                    turn(
                        say(
                            "AWS ids stand in {{first}} and others. Now both kinds together, with "
                            "their lines.",
                            _SCAN,
                        ),
                        first=r"(conf/\S+\.ini)",
                    ),
                ),
            ),
            files=r"(?m)^(\d+)$(?!\n\d)",
        ),
        turn(
            say(
                "Four hits. {{example}} is the documentation's example key and no secret; the "
                "other three are real. I redact those and keep the prefix.",
                _REDACT,
            ),
            say(
                "{{example}} is plainly an example value. The rest looks real, so I'll replace "
                "everything after the prefix in those three files.",
                _REDACT,
            ),
            example=r"(AKIAEXAMPLE\w+)",
        ),
        turn(
            say(
                "Redacted, {{place}} for instance. I'll scan again to be sure that only the "
                "example is left.",
                _SCAN,
            ),
            say(
                "{{place}} and the two others are clean. The same scan once more should find "
                "nothing but the example.",
                _SCAN,
            ),
            say(
                "The replacement shows at {{place}}. Besides those two forms, are there other "
                "suspicious names, like password or secret?",
                "grep -rniE 'passw|secret|private' conf | sort | head; " + _SCAN,
            ),
            place=r"(conf/\S+\.ini:\d+)",
        ),
        turn(
            say(
                "Just {{left}} is left. Now the report: the files, without any secret, under a "
                "name of this rollout.",
                '{ echo "redacted by $ROLLOUT_ID:"; cat found.txt; } > report-$ROLLOUT_ID.txt && '
                "head report-*.txt",
            ),
            say(
                "What remains is {{left}}, as intended. I'll write the report, with file names "
                "only, and read it once.",
                '{ echo "redacted by $ROLLOUT_ID:"; cat found.txt; } > report-$ROLLOUT_ID.txt && '
                "head report-*.txt",
            ),
            left=r"(conf/mail/\S+\.ini)",
        ),
        turn(
            say(
                "Let me make sure that the report of {{worker}} holds no secret and that the rest "
                "of the tree is as it was in the archive.",
                "grep -cE 'AKIA|ghp_' report-*.txt; tar df conf.tar.gz 2>&1 | "
                "grep -c 'Size differs\\|Contents differ'",
            ),
            say(
                "The report of {{worker}} is complete. A comparison with the archive tells whether "
                "I changed those three files and no others.",
                "tar df conf.tar.gz 2>&1 | grep -cE '(Size|Contents) differ'",
            ),
            worker=r"redacted by (\S+):",
        ),
        turn(
            say(
                "{{changed}} files differ from the archive, as they should. Two files at random, "
                "in case secrets of a form that I did not think of are common here.",
                _SPOT,
            ),
            say(
                "Exactly {{changed}} files were changed. Before I stop I read a few lines of other "
                "files, picked by my seed: is there anything else that looks like a secret?",
                _SPOT,
            ),
            changed=r"(\d+)\s*$",
        ),
        turn(
            say(
                "Nothing of the kind in {{file}}: only options. Three files had a real secret; "
                "they are redacted, and the report names them. The keys should be revoked now."
            ),
            say(
                "{{file}} is harmless. Finished: three files are redacted and reported. Whoever "
                "owns those keys has to revoke them."
            ),
            file=r"(conf/\w+/\S+\.ini)",
        ),
    ),
)
