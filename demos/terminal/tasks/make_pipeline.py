"""A Makefile that turns raw sensor readings into a summary, and stops on the way."""

import random

from .base import Files, Task, say, turn

__all__ = ["TASK"]

STATIONS = ("harbor", "mill", "north", "ridge", "valley")

MAKEFILE = """\
STATIONS = harbor mill north ridge valley

summary.csv: $(STATIONS:%=daily/%.csv) summary.py
\t@python3 summary.py $(filter daily/%,$^) > $@.tmp && mv $@.tmp $@ && cat $@

daily/%.csv: clean/%.csv daily.py
\t@mkdir -p daily && python3 daily.py $< $@

.PRECIOUS: clean/%.csv
clean/%.csv: raw/%.csv clean.py
\t@mkdir -p clean && python3 clean.py $< $@

publish: summary.csv
\t@{ echo "# $(ROLLOUT_ID)"; cat summary.csv; } > summary-$(ROLLOUT_ID).csv
\t@echo "published summary-$(ROLLOUT_ID).csv, $$(wc -l < summary.csv) lines"
"""

CLEAN = '''\
"""clean.py RAW CLEAN: drops impossible readings"""

import csv
import os
import sys

kept = dropped = 0
with open(sys.argv[1], newline="") as source, open(sys.argv[2] + ".tmp", "w") as target:
    for number, row in enumerate(csv.DictReader(source), 2):
        try:
            value = float(row["celsius"])
        except ValueError:
            sys.exit(f"{sys.argv[1]}:{number}: not a number: {row['celsius']!r}")
        if -40 <= value <= 50:
            kept += 1
            target.write(f"{row['day']},{row['minute']},{value:.1f}\\n")
        else:
            dropped += 1
os.rename(sys.argv[2] + ".tmp", sys.argv[2])
print(f"{sys.argv[2]}: {kept} kept, {dropped} dropped")
'''

DAILY = '''\
"""daily.py CLEAN DAILY: minimum, mean and maximum of each day"""

import collections
import sys

days = collections.defaultdict(list)
for line in open(sys.argv[1]):
    day, minute, value = line.split(",")
    days[int(day)].append(float(value))
with open(sys.argv[2], "w") as target:
    for day in range(1, 31):
        values = days[day]
        mean = sum(values) / len(values)
        target.write(f"{day},{min(values)},{mean:.2f},{max(values)}\\n")
print(f"{sys.argv[2]}: {len(days)} days")
'''

SUMMARY = '''\
"""summary.py DAILY...: one line for each station"""

import pathlib
import sys

print("station,days,lowest,mean,highest")
for name in sys.argv[1:]:
    rows = [line.split(",") for line in open(name)]
    lowest, highest = min(row[1] for row in rows), max(row[3].strip() for row in rows)
    mean = sum(float(row[2]) for row in rows) / len(rows)
    print(f"{pathlib.Path(name).stem},{len(rows)},{lowest},{mean:.2f},{highest}")
'''


def _files() -> Files:
    rng = random.Random("make-pipeline")
    files: Files = {"Makefile": MAKEFILE, "clean.py": CLEAN, "daily.py": DAILY}
    files["summary.py"] = SUMMARY
    for place, station in enumerate(STATIONS):
        lines = ["day,minute,celsius"]
        for day in range(1, 31):
            if (station, day) == ("ridge", 17):
                continue
            for minute in range(0, 1440, 15):
                value = 4 + place * 2 + 8 * rng.random() - abs(minute - 840) / 160
                text = "n/a" if station == "mill" and rng.random() < 0.004 else f"{value:.1f}"
                lines.append(f"{day},{minute},{'999.9' if rng.random() < 0.003 else text}")
        files[f"raw/{station}.csv"] = "\n".join(lines) + "\n"
    return files


_MAKE = "make 2>&1 | grep -v '^  '"
_GAPS = "grep -n -B1 -A1 'n/a' raw/mill.csv | head -n 5; grep -c 'n/a' raw/*.csv"
_DROP = (
    "python3 - <<'EOF'\n"
    "text = open('clean.py').read()\n"
    "start = text.index('            sys.exit')\n"
    "end = text.index('\\n', start) + 1\n"
    "fix = '''\\\n"
    "            if row['celsius'] != 'n/a':\n"
    "                sys.exit(f'{sys.argv[1]}:{number}: not a number')\n"
    "            dropped += 1\n"
    "            continue\n"
    "'''\n"
    "open('clean.py', 'w').write(text[:start] + fix + text[end:])\n"
    "EOF\n"
) + _MAKE
_DAYS = (
    "for s in harbor mill north ridge valley; do "
    'echo "$s $(tail -n +2 raw/$s.csv | cut -d, -f1 | sort -u | wc -l)"; done; '
    "comm -13 <(tail -n +2 raw/ridge.csv | cut -d, -f1 | sort -u) <(seq 30 | sort)"
)
_SKIP = (
    "sed -i 's/^    for day in range(1, 31):/    for day in sorted(days):/' daily.py && " + _MAKE
)
_COMPARE = (
    "for s in harbor mill north ridge valley; do awk -F, -v s=$s 'NR == 1 {lo = hi = $3} "
    "$3 < lo {lo = $3} $3 > hi {hi = $3} END {print s, lo, hi}' clean/$s.csv; done"
)
_NUMBERS = (
    "sed -i 's/min(row.1. for/min(float(row[1]) for/; s/max(row.3..strip() for/"
    "max(float(row[3]) for/' summary.py && " + _MAKE
)
_PUBLISH = (
    "touch raw/north.csv raw/ridge.csv && make publish && make -q && echo 'nothing left to do'"
)

TASK = Task(
    name="make-pipeline",
    prompt="`make` should turn raw/*.csv into summary.csv but fails. Repair the stages, check the "
    "summary against the clean data, and run `make publish`.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I run make as it is. It stops at the first stage that fails, and the message "
                "should say where.",
                _MAKE,
            ),
            say(
                "Let me see it fail first: a plain make, without the lines of the traceback if "
                "there is one.",
                _MAKE,
            ),
            say(
                "Before running anything I want the stages in front of me, and how much raw data "
                "they have to go through.",
                "grep -E '^[^\\t]*:' Makefile; wc -l raw/*.csv",
                then=(
                    turn(
                        say(
                            "Three stages for {{lines}} lines: clean, daily, summary. Now I'll see "
                            "which of them fails.",
                            _MAKE,
                        ),
                        lines=r"(\d+) total",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "clean.py gives up at {{place}}, where a reading is `n/a`: the sensor had nothing "
                "to report. It may drop exactly that value; any other text stays an error.",
                _DROP,
            ),
            say(
                "At {{place}} there is `n/a` in place of a temperature. Such a row should be "
                "counted as dropped, like the impossible values, and the stage should go on.",
                _DROP,
            ),
            say(
                "`n/a` at {{place}}. How many of those are there, and only at this station? A few "
                "single gaps could be dropped, whole days not.",
                _GAPS,
                then=(
                    turn(
                        say(
                            "{{count}} readings of the mill, single gaps between good values. "
                            "They can be dropped and counted.",
                            _DROP,
                        ),
                        count=r"raw/mill\.csv:(\d+)",
                    ),
                ),
            ),
            place=r"(raw/\w+\.csv:\d+)",
        ),
        turn(
            say(
                "Clean works now, but daily stops with {{error}}: a day without values. Which "
                "station lacks a day?",
                _DAYS,
            ),
            say(
                "Next stage: {{error}} in daily.py. It expects 30 days everywhere, so I count the "
                "days of each station.",
                _DAYS,
            ),
            say(
                "{{error}}: a list without values went into a mean. I'll read the loop of daily.py "
                "before I look for the day behind it.",
                "tail -n 8 daily.py",
                then=(
                    turn(
                        say(
                            "It takes {{loop}}, so a day without readings breaks it. Which station "
                            "lacks one?",
                            _DAYS,
                        ),
                        loop=r"(range\(1, 31\))",
                    ),
                ),
            ),
            error=r"(?m)^(\w+Error)\b",
        ),
        turn(
            say(
                "ridge has {{days}} days; day 17 is missing from the raw data. daily.py should "
                "take the days that exist, and the summary shows their number.",
                _SKIP,
            ),
            say(
                "Day 17 was never recorded at ridge, which leaves {{days}}. With a loop over the "
                "existing days the stage gets through.",
                _SKIP,
            ),
            days=r"ridge (\d+)",
        ),
        turn(
            say(
                "The summary is there, but a lowest value of {{low}} at harbor looks odd. I'll "
                "take minimum and maximum straight from the clean files.",
                _COMPARE,
            ),
            say(
                "harbor's lowest is {{low}}, it says. I don't believe these numbers before awk has "
                "found the same in the clean data.",
                _COMPARE,
            ),
            low=r"harbor,30,([-\d.]+),",
        ),
        turn(
            say(
                "No: at harbor they are {{range}}. summary.py compares text, where 9 is more than "
                "10. It has to convert to numbers; then make rebuilds the last stage alone.",
                _NUMBERS,
            ),
            say(
                "awk finds {{range}} for harbor, so the summary is wrong: it takes minimum and "
                "maximum of strings. Converting them to float repairs it.",
                _NUMBERS,
            ),
            range=r"harbor (\S+ \S+)",
        ),
        turn(
            say(
                "Now harbor goes from {{low}} up, as awk says. To see that make rebuilds just what "
                "it must, I touch two raw files and publish.",
                _PUBLISH,
            ),
            say(
                "{{low}} is right. I publish after a touch of two stations' data: the others "
                "should stay as they are, and then nothing should be left to do.",
                _PUBLISH,
            ),
            low=r"harbor,30,([-\d.]+),",
        ),
        turn(
            say(
                "{{file}} is published. I repaired clean.py (n/a), daily.py (missing day) and "
                "summary.py (numbers compared as text)."
            ),
            say(
                "Done: {{file}}. All three stages had a fault; the extremes now agree with the "
                "clean data, and make rebuilds only what changed."
            ),
            file=r"published (\S+\.csv)",
        ),
    ),
)
