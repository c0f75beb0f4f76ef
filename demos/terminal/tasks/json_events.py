"""A week of a shop's events, some of which the app sent twice."""

from .base import Files, Task, say, turn

__all__ = ["TASK"]

GENERATE = '''\
"""Writes events.jsonl, one week of the shop, and bank.txt; the same at every run."""

import json
import random

rng = random.Random("json-events")
events = []
paid = 0
for _ in range(2700):
    client = "app" if rng.random() < 0.4 else "web"
    user = f"u{rng.randrange(800):03d}"
    when = rng.randrange(7 * 86400)
    steps = ["view"] * rng.randint(2, 9)
    for step, chance in (("cart", 0.5), ("checkout", 0.6), ("paid", 0.8)):
        if rng.random() > chance:
            break
        steps.append(step)
    for step in steps:
        when += rng.randint(3, 240)
        event = {"id": f"e{len(events):05d}", "user": user, "at": when, "kind": step}
        event |= {"client": client, "ms": int(rng.lognormvariate(4.6, 0.6))}
        events.append(event)
        paid += step == "paid"
        if client == "app" and rng.random() < 0.09:
            events.append(event | {"at": when + 2})
events.sort(key=lambda event: event["at"])
with open("events.jsonl", "w") as out:
    out.writelines(json.dumps(event) + "\\n" for event in events)
with open("bank.txt", "w") as out:
    out.write(f"payments that arrived: {paid}\\n")
'''

FUNNEL = '''\
"""python3 funnel.py FILE: how many events reach each step, and how many of the step before"""

import collections
import json
import sys

counts = collections.Counter()
for line in open(sys.argv[1]):
    event = json.loads(line)
    counts[event["kind"]] += 1
before = None
for kind in ("view", "cart", "checkout", "paid"):
    share = f"{100 * counts[kind] / before:5.1f} %" if before else ""
    print(f"{kind:9} {counts[kind]:6} {share}".rstrip())
    before = counts[kind]
'''


def _files() -> Files:
    return {"generate.py": GENERATE, "funnel.py": FUNNEL}


_SESSIONS = (
    "cat > sessions.py <<'EOF'\n"
    "import collections, json, statistics\n"
    "times = collections.defaultdict(list)\n"
    "for line in open('events.jsonl'):\n"
    "    event = json.loads(line)\n"
    "    times[event['user']].append(event['at'])\n"
    "lengths = []\n"
    "for stamps in times.values():\n"
    "    start = last = stamps[0]\n"
    "    for at in stamps:\n"
    "        if at - last > 1800:\n"
    "            lengths.append(last - start)\n"
    "            start = at\n"
    "        last = at\n"
    "    lengths.append(last - start)\n"
    "print(f'{len(lengths)} sessions of {len(times)} users')\n"
    "print(f'median length: {statistics.median(lengths) / 60:.1f} minutes')\n"
    "EOF\n"
    "python3 sessions.py"
)
_FUNNEL = "python3 funnel.py events.jsonl; cat bank.txt"
_REPEATS = (
    'grep -oE \'"id": "e[0-9]+"\' events.jsonl | sort | uniq -d > twice.txt; '
    'echo "ids that come twice: $(wc -l < twice.txt)"; grep -Ff twice.txt events.jsonl | '
    'grep -oE \'"client": "[a-z]+"\' | sort | uniq -c'
)
_FIX = (
    "sed -i -e 's/^counts = .*/&\\nseen = set()/' -e 's/^    event = .*/&\\n"
    '    if event["id"] in seen:\\n        continue\\n    seen.add(event["id"])/\' funnel.py && '
    + _FUNNEL
)
_PERCENTILES = (
    "cat > percentiles.py <<'EOF'\n"
    "import json, random, sys\n"
    "rng = random.Random(int(sys.argv[1]))\n"
    "events = {e['id']: e['ms'] for e in map(json.loads, open('events.jsonl'))}\n"
    "times = sorted(events.values())\n"
    "for share in (50, 95, 99):\n"
    "    print(f'p{share}: {times[len(times) * share // 100]} ms')\n"
    "draws = sorted(sorted(rng.choices(times, k=1000))[950] for _ in range(120))\n"
    "print(f'p95 of 120 samples of 1000: {draws[6]} to {draws[113]} ms')\n"
    "EOF\n"
    "python3 percentiles.py $ROLLOUT_SEED"
)
_REPORT = (
    "{ python3 funnel.py events.jsonl; python3 sessions.py; } > report-$ROLLOUT_ID.txt && "
    "cat report-*.txt"
)

TASK = Task(
    name="json-events",
    prompt="generate.py writes a week of shop events. funnel.py counts more payments in them than "
    "the bank (bank.txt). Find the double count, repair funnel.py, and report the funnel, the "
    "sessions and the percentiles of the response time.",
    make_files=_files,
    turns=(
        turn(
            say(
                "The events have to be made first. I'll run the generator, count the lines and "
                "look at two of them to see which fields an event has.",
                "python3 generate.py && wc -l < events.jsonl && head -n 2 events.jsonl",
            ),
            say(
                "I begin with the data: generate it, see how many events there are, and read the "
                "first two so that I know the fields.",
                "python3 generate.py && wc -l < events.jsonl && head -n 2 events.jsonl",
            ),
            say(
                "Generating the events and counting them by kind gives a first impression of what "
                "the funnel should come to.",
                "python3 generate.py && wc -l < events.jsonl && "
                'grep -oE \'"kind": "[a-z]+"\' events.jsonl | sort | uniq -c',
            ),
        ),
        turn(
            say(
                "There are {{events}} events, ordered by time. I'll cut them into sessions with "
                "the usual gap of half an hour; the report needs that anyway.",
                _SESSIONS,
            ),
            say(
                "{{events}} lines, one event each. Sessions are the first number of the report: a "
                "pause of more than 30 minutes starts a new one.",
                _SESSIONS,
            ),
            events=r"(?m)^(\d+)$",
        ),
        turn(
            say(
                "That makes {{sessions}} sessions, which looks plausible. Now the funnel as it is, "
                "with the number of payments from the bank beside it.",
                _FUNNEL,
            ),
            say(
                "{{sessions}} sessions in one week. Next I reproduce the complaint: what funnel.py "
                "counts as paid, and what really arrived at the bank.",
                _FUNNEL,
            ),
            sessions=r"(\d+) sessions",
        ),
        turn(
            say(
                "The funnel has {{paid}} payments and the bank fewer. A client that repeats what "
                "it sent would explain that, so I look for ids that come twice.",
                _REPEATS,
            ),
            say(
                "{{paid}} paid events are too many. If an event was sent again it has the same id; "
                "I'll count such ids and see which client they are from.",
                _REPEATS,
            ),
            say(
                "It counts {{paid}} payments. Do people really pay twice in a moment? I'll list "
                "users with two paid events that are at most a minute apart.",
                "python3 - <<'EOF'\n"
                "import json\n"
                "last, close = {}, 0\n"
                "for event in map(json.loads, open('events.jsonl')):\n"
                "    if event['kind'] == 'paid':\n"
                "        close += event['at'] - last.get(event['user'], -99) < 60\n"
                "        last[event['user']] = event['at']\n"
                "print(f'{close} payments within a minute of the one before')\n"
                "EOF",
                then=(
                    turn(
                        say(
                            "{{close}} payments follow another one of the same user at once. "
                            "Nobody shops like that; let me see whether they share an id.",
                            _REPEATS,
                        ),
                        close=r"(\d+) payments within",
                    ),
                ),
            ),
            paid=r"paid +(\d+)",
        ),
        turn(
            say(
                "{{twice}} ids come twice, and only the app does that. funnel.py should skip an id "
                "that it has seen; I'll add that and compare with the bank again.",
                _FIX,
            ),
            say(
                "So {{twice}} events were sent again by the app, with the same id. The funnel has "
                "to remember the ids and count each of them once.",
                _FIX,
            ),
            say(
                "{{twice}} repeated ids, all from the app. Before I touch funnel.py I'll try it on "
                "a copy of the events without repeats.",
                "awk '!seen[$2]++' events.jsonl > once.jsonl && wc -l < once.jsonl && "
                "python3 funnel.py once.jsonl; cat bank.txt",
                then=(
                    turn(
                        say(
                            "Without repeats it is {{once}} payments, just what the bank has. The "
                            "repair belongs into funnel.py: skip an id that was seen.",
                            _FIX,
                        ),
                        once=r"paid +(\d+)",
                    ),
                ),
            ),
            twice=r"ids that come twice: (\d+)",
        ),
        turn(
            say(
                "Funnel and bank agree on {{arrived}} now. The percentiles are missing: each id "
                "once, and an interval for p95 from samples drawn with my seed.",
                _PERCENTILES,
            ),
            say(
                "{{arrived}} payments on both sides. For the response times I take every event "
                "once, too, and draw samples with this rollout's seed to see how firm p95 is.",
                _PERCENTILES,
            ),
            arrived=r"arrived: (\d+)",
        ),
        turn(
            say(
                "p95 moves {{range}} between samples, so it can be reported. I'll write funnel and "
                "sessions into the report of this rollout and read it.",
                _REPORT,
            ),
            say(
                "The samples have their p95 at {{range}}, narrow enough. Now the report with the "
                "corrected funnel and the sessions, under the name of this rollout.",
                _REPORT,
            ),
            range=r"of 1000: (\d+ to \d+ ms)",
        ),
        turn(
            say(
                "The app repeats events under the same id, and funnel.py counted them all. It "
                "skips repeats now and shows {{paid}} payments, like the bank. The report is there."
            ),
            say(
                "Done. funnel.py counts each id once and comes to {{paid}} payments, the bank's "
                "number. The surplus was events that the app had sent a second time."
            ),
            paid=r"paid +(\d+)",
        ),
    ),
)
