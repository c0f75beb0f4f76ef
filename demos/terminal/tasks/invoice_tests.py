"""A small billing project with two wrong lines behind its failing tests."""

from .base import Files, Task, say, turn

__all__ = ["TASK"]

MONEY = '''\
"""Amounts of money as whole cents."""

from decimal import ROUND_HALF_EVEN, Decimal


def cents(text):
    """'12.345' -> 1235: half a cent goes up."""
    return int((Decimal(text) * 100).quantize(Decimal(1), rounding=ROUND_HALF_EVEN))


def show(amount):
    """1235 -> '12.35'"""
    return f"{amount // 100}.{amount % 100:02d}"
'''

TOTALS = '''\
"""What an invoice comes to: discount first, tax on what is left."""


def discount(net, percent):
    return net * percent // 100


def total(lines, percent, tax):
    net = sum(quantity * price for quantity, price in lines)
    return net + net * tax // 100 - discount(net, percent)
'''

TEST_MONEY = """\
import unittest

from invoice.money import cents, show


class Money(unittest.TestCase):
    def test_half_a_cent_goes_up(self):
        for amount in range(0, 24000):
            self.assertEqual(cents(f"{amount}.125"), amount * 100 + 13)

    def test_round_trip(self):
        for amount in range(24000):
            self.assertEqual(cents(show(amount)), amount)
"""

TEST_TOTALS = """\
import unittest

from invoice.totals import discount, total


class Totals(unittest.TestCase):
    def test_no_discount(self):
        self.assertEqual(total([(2, 500), (1, 250)], 0, 20), 1500)

    def test_tax_after_discount(self):
        self.assertEqual(total([(1, 10000)], 10, 20), 10800)

    def test_discount(self):
        for net in range(20000):
            self.assertEqual(discount(net, 100), net)
"""


def _files() -> Files:
    return {
        "invoice/__init__.py": "",
        "invoice/money.py": MONEY,
        "invoice/totals.py": TOTALS,
        "tests/__init__.py": "",
        "tests/test_money.py": TEST_MONEY,
        "tests/test_totals.py": TEST_TOTALS,
    }


_TESTS = "python3 -m unittest 2>&1 | grep -E '^(FAIL|ERROR|AssertionError|Ran|OK|FAILED)'"
_SPOT = (
    "python3 - <<'EOF'\n"
    "import os, random\n"
    "from invoice.money import cents\n"
    "rng = random.Random(os.environ['ROLLOUT_SEED'])\n"
    "for _ in range(4):\n"
    "    text = f'{rng.randrange(100)}.{rng.randrange(100):02d}5'\n"
    "    print(text, '->', cents(text))\n"
    "EOF"
)

TASK = Task(
    name="invoice-tests",
    prompt="The tests of the invoice package fail. Find out why, fix the code (not the tests) "
    "and show that all of them pass.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll begin with the layout of the project, so that I know which module each of "
                "the tests belongs to before I run anything.",
                "find . -name '*.py' | sort | xargs wc -l",
            ),
            say(
                "First a look at what is here: the package, its tests, and how long each of the "
                "files is. Then I can decide what to read.",
                "find . -name '*.py' | sort | xargs wc -l",
            ),
            say(
                "The quickest way in is to run the test suite as it stands and let the failures "
                "tell me where to look.",
                _TESTS,
                then=(
                    turn(
                        say(
                            "{{failures}} failures. Let me see which files make up the project, "
                            "to know what I am dealing with before reading code.",
                            "find . -name '*.py' | sort | xargs wc -l",
                        ),
                        failures=r"failures=(\d+)",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "{{total}} lines in all, so I can read everything that matters. Running the whole "
                "suite now, with only the failing names and the summary kept.",
                _TESTS,
            ),
            say(
                "It is a small project, {{total}} lines in total. Now the tests: I want the names "
                "of the failing ones and their assertion messages.",
                _TESTS,
            ),
            total=r"(\d+) total",
        ),
        turn(
            say(
                "So {{failures}} tests fail. The message {{first}} looks like a rounding matter, "
                "and the other one is about totals. I'll read both modules.",
                "cat invoice/money.py invoice/totals.py",
            ),
            say(
                "{{failures}} failures, and the first one says {{first}}: one cent off. Let me "
                "read the two modules under test side by side.",
                "cat invoice/money.py invoice/totals.py",
            ),
            say(
                "The suite reports {{failures}} failures; {{first}} smells of rounding to even. "
                "I'll check how the code rounds before I read anything else.",
                "grep -n 'ROUND\\|tax' -r invoice | sort",
            ),
            failures=r"failures=(\d+)",
            first=r"AssertionError: (\d+ != \d+)",
        ),
        turn(
            say(
                "There it is: {{mode}} takes 12.125 down to 12.12, while the docstring wants half "
                "a cent to go up. I'll switch the rounding mode and run the money tests.",
                "sed -i 's/ROUND_HALF_EVEN/ROUND_HALF_UP/g' invoice/money.py && "
                "python3 -m unittest tests.test_money 2>&1 | tail -3",
            ),
            say(
                "cents() quantizes with {{mode}}, which is banker's rounding. Half a cent must go "
                "up, so this becomes ROUND_HALF_UP; then I run that test module alone.",
                "sed -i 's/HALF_EVEN/HALF_UP/' invoice/money.py && "
                "python3 -m unittest -v tests.test_money 2>&1",
            ),
            mode=r"(ROUND_HALF_\w+)",
        ),
        turn(
            say(
                "The {{ran}} money tests pass now ({{verdict}}). Next total(): it charges tax on "
                "the net before the discount. I'll rewrite it to discount first.",
                "python3 - <<'EOF'\n"
                "path = 'invoice/totals.py'\n"
                "text = open(path).read()\n"
                "text = text.replace(' - discount(net, percent)', '')\n"
                "text = text.replace('    return net + net',\n"
                "    '    net -= discount(net, percent)\\n    return net + net')\n"
                "open(path, 'w').write(text)\n"
                "EOF\n"
                "tail -4 invoice/totals.py",
            ),
            say(
                "{{verdict}} for all {{ran}} of them. What remains is the order in total(): the "
                "discount has to come off before tax is added. A two-line change does it.",
                "sed -i 's|    return net + net \\* tax.*|    net -= discount(net, percent)\\n"
                "    return net + net * tax // 100|' invoice/totals.py && "
                "tail -4 invoice/totals.py",
            ),
            ran=r"Ran (\d+) tests",
            verdict=r"(?m)^(OK)",
        ),
        turn(
            say(
                "The last line now reads `{{line}}`, after the discount. Time to run the whole "
                "suite again and make sure that nothing else broke.",
                _TESTS,
            ),
            say(
                "total() ends in `{{line}}` now, which is what the module's docstring promises. "
                "Once more all the tests, from the top.",
                _TESTS,
            ),
            line=r"(return net \+ net \* tax // 100)\s*$",
        ),
        turn(
            say(
                "All {{ran}} tests pass. A few amounts drawn by my own seed, as a check that the "
                "tests did not just happen to avoid something.",
                _SPOT,
            ),
            say(
                "{{ran}} tests, no failure. I'd still like to see the rounding at work on a few "
                "amounts that no test has picked.",
                _SPOT,
            ),
            ran=r"Ran (\d+) tests",
        ),
        turn(
            say(
                "{{amount}} and the others are right as well, and all tests pass. Two lines were "
                "wrong: cents() rounded half a cent to the even neighbour, and total() added the "
                "tax before the discount came off."
            ),
            say(
                "Done, with {{amount}} as an example. I changed the rounding mode in "
                "invoice/money.py and the order of discount and tax in invoice/totals.py; the "
                "tests are untouched."
            ),
            amount=r"(\d+\.\d+5 -> \d+)",
        ),
    ),
)
