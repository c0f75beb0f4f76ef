"""A date parser whose tests run in an order drawn by the rollout's seed."""

from .base import Files, Task, say, turn

__all__ = ["TASK"]

DATES = '''\
"""Parses dates as people write them: 2024-02-29, 29.2.2024, 29 Feb 2024."""

import re

MONTHS = "jan feb mar apr may jun jul aug sep oct nov dec".split()
DAYS = (31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def leap(year):
    return year % 4 == 0


def parse(text):
    """-> (year, month, day); ValueError where there is no such day."""
    if match := re.fullmatch(r"(\\d{4})-(\\d\\d)-(\\d\\d)", text):
        year, month, day = map(int, match.groups())
    elif match := re.fullmatch(r"(\\d+)\\.(\\d+)\\.(\\d{4})", text):
        month, day, year = map(int, match.groups())
    elif match := re.fullmatch(r"(\\d+) (\\w{3}) (\\d{4})", text):
        day, year = int(match[1]), int(match[3])
        month = MONTHS.index(match[2].lower()) + 1
    else:
        raise ValueError(text)
    if not 1 <= month <= 12:
        raise ValueError(f"no month {month}")
    last = DAYS[month - 1] + (month == 2 and leap(year))
    if not 1 <= day <= last:
        raise ValueError(f"no day {day}")
    return year, month, day
'''

RUNNER = '''\
"""Runs the tests in an order drawn by --seed: python3 run_tests.py --seed N"""

import random
import sys
import time
from datetime import date, timedelta

from dates import leap, parse


def days(step=1):
    day = date(1890, 1, 1)
    while day.year < 2110:
        yield day
        day += timedelta(days=step)


def test_iso():
    for day in days(7):
        assert parse(day.isoformat()) == (day.year, day.month, day.day), day


def test_dotted():
    for day in days(7):
        text = f"{day.day}.{day.month}.{day.year}"
        assert parse(text) == (day.year, day.month, day.day), text


def test_words():
    for day in days(7):
        text = day.strftime("%d %b %Y")
        assert parse(text) == (day.year, day.month, day.day), text


def test_century():
    assert not leap(1900), "1900 was no leap year"
    assert leap(2000)


def test_no_such_day():
    for text in ("2023-02-29", "2023-04-31", "0.1.2023", "2023-13-01"):
        try:
            parse(text)
        except ValueError:
            continue
        raise AssertionError(f"{text} was taken")


def test_garbage():
    for number in range(3000):
        try:
            parse(f"{number}x")
        except ValueError:
            continue
        raise AssertionError(number)


tests = sorted(name for name in dir() if name.startswith("test_"))
if "--seed" in sys.argv:
    random.Random(sys.argv[sys.argv.index("--seed") + 1]).shuffle(tests)
failed = 0
start = time.perf_counter()
for name in tests:
    try:
        globals()[name]()
        print("ok    ", name)
    except AssertionError as error:
        failed += 1
        print("FAILED", name, "-", error)
print(f"{len(tests)} tests, {failed} failed in {time.perf_counter() - start:.3f}s")
sys.exit(failed > 0)
'''


def _files() -> Files:
    return {"dates.py": DATES, "run_tests.py": RUNNER}


_RUN = "python3 run_tests.py"
_SHUFFLED = "python3 run_tests.py --seed $ROLLOUT_SEED"

TASK = Task(
    name="date-parser",
    prompt="dates.py has bugs that run_tests.py finds. Fix them, then show that the tests also "
    "pass in a shuffled order (use your own seed).",
    make_files=_files,
    turns=(
        turn(
            say(
                "Let me run the tests in their fixed order first. That shows how many of them "
                "fail at the moment, and with which inputs.",
                _RUN,
            ),
            say(
                "I'll start with a plain run of the test script, without a seed, so that I have "
                "a baseline I can come back to.",
                _RUN,
            ),
            say(
                "Before I run anything I want to read the parser. It can't be long, and the bugs "
                "may well be visible to the naked eye.",
                "cat dates.py",
                then=(
                    turn(
                        say(
                            "The month table is `{{table}}`, fine. The dotted form looks swapped "
                            "to me. The tests will say; a plain run first.",
                            _RUN,
                        ),
                        table=r"DAYS = \((31, 28, 31)",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "{{failed}} of the tests fail, the dotted form among them. I'll look at that "
                "branch of parse() and at leap() with line numbers.",
                "grep -n 'groups()\\|year % 4\\|fullmatch' dates.py",
            ),
            say(
                "Result: {{failed}} failed. The century test and the dotted form are independent "
                "of each other, so let me print both places with their line numbers.",
                "grep -n 'groups()\\|year % 4\\|fullmatch' dates.py",
            ),
            say(
                "{{failed}} failures. I would like to see the whole of parse() around the dotted "
                "form before touching it.",
                "sed -n '9,32p' dates.py | cat -n",
            ),
            failed=r"(\d+) failed",
        ),
        turn(
            say(
                "There: `{{wrong}}` reads the dotted form the American way, but 29.2.2024 has the "
                "day first. I'll swap the two names and run the tests again.",
                "sed -i 's/month, day, year = map/day, month, year = map/' dates.py && " + _RUN,
            ),
            say(
                "`{{wrong}}` is the culprit for the dotted dates: day and month are the wrong way "
                "round. Swapping them, then a run of the tests, failures only.",
                "sed -i 's/month, day, year = map/day, month, year = map/' dates.py && "
                + _RUN
                + " | grep -v ^ok",
            ),
            wrong=r"(month, day, year = map\(int, match\.groups\(\)\))",
        ),
        turn(
            say(
                "Only {{failed}} left: {{message}}. leap() knows nothing of centuries; the rule "
                "is divisible by 4, but not by 100 unless by 400.",
                "sed -i 's/return year % 4 == 0/return year % 4 == 0 and "
                "(year % 100 != 0 or year % 400 == 0)/' dates.py && " + _RUN,
            ),
            say(
                'Down to {{failed}}, with the message "{{message}}". I\'ll write the full '
                "Gregorian rule into leap() and repeat the run.",
                "sed -i 's/return year % 4 == 0/return year % 4 == 0 and "
                "(year % 100 != 0 or year % 400 == 0)/' dates.py && " + _RUN,
            ),
            say(
                "{{failed}} failure remains, {{message}}. The standard library has this rule "
                "already, so I'll simply use calendar.isleap instead of my own arithmetic.",
                "sed -i 's/    return year % 4 == 0/    return calendar.isleap(year)/; "
                "s/^import re$/import calendar\\nimport re/' dates.py && " + _RUN,
            ),
            failed=r"(\d+) failed",
            message=r"FAILED test_\w+ - (.+)",
        ),
        turn(
            say(
                "{{tests}} tests and {{failed}} failures in fixed order. The task also asks for a "
                "shuffled order, drawn by the seed of this rollout.",
                _SHUFFLED,
            ),
            say(
                "All green: {{tests}} tests, {{failed}} failed. What is left is to shuffle them "
                "with my own seed, in case one test leans on another.",
                _SHUFFLED,
            ),
            tests=r"(\d+) tests",
            failed=r"(\d+) failed",
        ),
        turn(
            say(
                "In the shuffled order {{first}} ran first, and {{failed}} of {{tests}} tests "
                "failed. dates.py is fixed: day and month of the dotted form, and the leap rule."
            ),
            say(
                "Both bugs are fixed. The shuffled run (it began with {{first}}) shows {{tests}} "
                "tests and {{failed}} failures."
            ),
            first=r"(test_\w+)",
            tests=r"(\d+) tests",
            failed=r"(\d+) failed",
        ),
    ),
)
