"""One morning of a web server's log with a burst of errors in it."""

from .base import Files, Task, say, turn

__all__ = ["TASK"]

REPLAY = '''\
"""Writes access.log: one morning of the shop's web server, the same at every run."""

import random

rng = random.Random("log-report")
PATHS = ["/", "/search", "/item", "/cart", "/cart/add", "/checkout", "/login", "/static/app.js"]
WEIGHTS = [18, 14, 30, 9, 7, 3, 5, 14]
USUAL = [12, 90, 35, 28, 40, 160, 55, 3]
usual = dict(zip(PATHS, USUAL))
pairs = rng.choices(PATHS, WEIGHTS, k=80000)
hosts = [f"10.{a}.{b}.17" for a in range(4) for b in range(60)]
when = 6 * 3600.0
with open("access.log", "w") as log:
    for path in pairs:
        when += rng.random() * 0.54
        second = int(when)
        minute = second // 60
        ms = int(usual[path] * (0.5 + rng.random()))
        dice = rng.random()
        status = 404 if dice < 0.012 else 302 if dice < 0.06 and path == "/login" else 200
        if dice > 0.9996:
            status = 500
        if 9 * 60 + 41 <= minute <= 9 * 60 + 44 and path.startswith("/c"):
            ms += 2000 + int(1500 * rng.random())
            status = 503 if ms > 2600 else 200
        elif dice > 0.998 and path == "/search":
            ms += 1200
        stamp = f"{minute // 60:02d}:{minute % 60:02d}:{second % 60:02d}"
        host = hosts[int(dice * 1000003) % 240]
        log.write(
            f'{host} - - [14/Mar/2024:{stamp} +0000] "GET {path} HTTP/1.1" {status} '
            f"{300 + ms * 7} {ms}\\n"
        )
'''

REPORT = '''\
"""python3 report.py LOG: counts, slow paths and minutes of trouble as Markdown"""

import collections
import re
import sys

LINE = re.compile(r'[^[]+\\[[^:]+:(\\d\\d:\\d\\d)\\S+ \\S+ "GET (\\S+) [^"]+" (\\d+) \\d+ (\\d+)')
status, times, failed = collections.Counter(), {}, collections.Counter()
for line in open(sys.argv[1]):
    minute, path, code, ms = LINE.match(line).groups()
    status[code] += 1
    times.setdefault(path, []).append(int(ms))
    failed[minute] += code >= "500"
print(f"requests: {sum(status.values())}")
print("status:", ", ".join(f"{code} {count}" for code, count in sorted(status.items())))
for path, values in sorted(times.items(), key=lambda item: (-len(item[1]), item[0])):
    values.sort()
    print(f"- {path}: {len(values)} requests, p99 {values[len(values) * 99 // 100]} ms")
print("bursts:", ", ".join(minute for minute, count in sorted(failed.items()) if count >= 5))
'''


def _files() -> Files:
    return {"replay.py": REPLAY, "report.py": REPORT}


_LOG = "python3 replay.py && wc -l access.log && head -n 2 access.log"
_STATUS = "awk '{print $9}' access.log | sort | uniq -c | sort -rn"
_MINUTES = (
    "awk '$9 >= 500 {print substr($4, 14, 5), $9}' access.log | sort | uniq -c | sort -rn | head -6"
)
_PATHS = (
    "awk '$9 == 503 {print $7}' access.log | sort | uniq -c | sort -rn; "
    "awk '$NF > 1000 {n[$7]++; if ($NF > top[$7]) top[$7] = $NF} "
    'END {for (p in n) print n[p], "slow", p, "up to", top[p], "ms"}\' access.log | sort -rn'
)
_EXAMPLES = (
    "grep -E '2024:09:4[0-5]' access.log | grep '\" 503 ' > burst.log; wc -l burst.log; "
    "sort -t' ' -k10,10n access.log | tail -n 1; "
    "awk 'NR % 20 == 1' burst.log"
)
_WRITE = (
    '{ echo "# access.log, by $ROLLOUT_ID"; python3 report.py access.log; } '
    "> report-$ROLLOUT_ID.md && cat report-$ROLLOUT_ID.md"
)
_VERIFY = (
    "grep -c . access.log; awk '$9 >= 500' access.log | wc -l; "
    "cut -d'\"' -f2 access.log | sort -u | wc -l; tail -n 1 report-*.md"
)

TASK = Task(
    name="log-report",
    prompt="replay.py writes access.log, one morning of our web server; the last field is the "
    "time in ms. Report status codes, slow paths and the minutes of trouble, with report.py.",
    make_files=_files,
    turns=(
        turn(
            say(
                "The log has to be written first. I'll run replay.py, count the lines and look at "
                "two of them for the fields.",
                _LOG,
            ),
            say(
                "Let me make the log and see what a line looks like before I count anything.",
                _LOG,
            ),
        ),
        turn(
            say(
                "{{lines}} requests, with the status in field 9. How often does each status code "
                "occur?",
                _STATUS,
            ),
            say(
                "A log of {{lines}} lines in the common format, plus the milliseconds. I begin "
                "with a table of the status codes.",
                _STATUS,
            ),
            say(
                "{{lines}} requests came in. Before the errors I want to know what the visitors "
                "asked for: the paths, by number of requests.",
                "awk '{print $7}' access.log | sort | uniq -c | sort -rn",
                then=(
                    turn(
                        say(
                            "Most of them, {{top}}, went to the item pages. And how did they end? "
                            "The status codes come next.",
                            _STATUS,
                        ),
                        top=r"(\d+) /item",
                    ),
                ),
            ),
            lines=r"(\d+) access\.log",
        ),
        turn(
            say(
                "{{failed}} requests got a 503, far more than the few 500s. If they lie close "
                "together there was a burst; I'll count server errors by minute.",
                _MINUTES,
            ),
            say(
                "The {{failed}} answers with 503 are what matters here. Were they spread over the "
                "morning? A count for each minute shows it.",
                _MINUTES,
            ),
            say(
                "503 stands out with {{failed}}. First by hour, to see roughly where they are, "
                "then by minute.",
                "awk '$9 >= 500 {print substr($4, 14, 2)}' access.log | sort | uniq -c; "
                + _MINUTES,
            ),
            failed=r"(\d+) 503\b",
        ),
        turn(
            say(
                "The worst minute is {{worst}}, and its neighbours are nearly as bad. Which paths "
                "failed, and which were slow without failing?",
                _PATHS,
            ),
            say(
                "It is one burst around {{worst}}; outside of it there are only single errors. Now "
                "the paths behind the 503s, and everything above one second.",
                _PATHS,
            ),
            worst=r"\d+ (09:4\d) 503",
        ),
        turn(
            say(
                "Only cart and checkout failed. /search has {{slow}} slow requests of its own, "
                "which is another matter. I'll put the burst aside and print a few of its lines.",
                _EXAMPLES,
            ),
            say(
                "Everything that begins with /c was hit. The {{slow}} slow searches are spread "
                "over the day. A few lines of the burst will do as evidence.",
                _EXAMPLES,
            ),
            say(
                "The cart and checkout pages share a backend, I guess; /search with {{slow}} slow "
                "requests does not belong to it. That is enough for the report.",
                _WRITE,
                then=(
                    turn(
                        say(
                            "The report names {{minutes}} as the minutes of trouble. I'll check "
                            "its numbers against the log with plain tools.",
                            _VERIFY,
                        ),
                        minutes=r"bursts: (.+)",
                    ),
                    turn(
                        say(
                            "The report is written and its numbers agree with the log: {{errors}} "
                            "server errors, nearly all from cart and checkout at 09:41 to 09:44."
                        ),
                        errors=r"^\d+\n(\d+)\n",
                    ),
                ),
                rejoin=False,
            ),
            slow=r"(\d+) slow /search",
        ),
        turn(
            say(
                "burst.log holds {{count}} lines, and the examples all waited for more than two "
                "seconds. report.py can write the summary now, under this rollout's name.",
                _WRITE,
            ),
            say(
                "{{count}} failures in the burst, each after a long wait: a timeout behind the "
                "server. Now the report itself.",
                _WRITE,
            ),
            count=r"(\d+) burst\.log",
        ),
        turn(
            say(
                "The report lists {{minutes}}, as I found by hand. A last check of its totals with "
                "awk and grep.",
                _VERIFY,
            ),
            say(
                "Bursts at {{minutes}}: that agrees with the count by minute. I'll compare the "
                "number of requests and errors once more.",
                _VERIFY,
            ),
            minutes=r"bursts: (.+)",
        ),
        turn(
            say(
                "The report is done. {{errors}} server errors in the morning, nearly all of them "
                "503s of cart and checkout between 09:41 and 09:44."
            ),
            say(
                "Finished: of {{errors}} server errors almost all belong to one burst from 09:41 "
                "to 09:44 in cart and checkout. Slow searches are a separate problem."
            ),
            errors=r"^\d+\n(\d+)\n",
        ),
    ),
)
