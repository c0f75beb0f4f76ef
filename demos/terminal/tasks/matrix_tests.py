"""A small package for exact matrices and modular numbers; two of its tests fail."""

from .base import Files, Task, say, turn

__all__ = ["TASK"]

DENSE = '''\
"""Exact matrices: lists of rows of integers or fractions."""

from fractions import Fraction


def multiply(a, b):
    columns = list(zip(*b))
    return [[sum(x * y for x, y in zip(row, column)) for column in columns] for row in a]


def identity(size):
    return [[int(i == j) for j in range(size)] for i in range(size)]


def determinant(a):
    """By Bareiss: all divisions are exact."""
    rows = [list(row) for row in a]
    size, sign, before = len(rows), 1, 1
    for k in range(size - 1):
        pivot = next((i for i in range(k, size) if rows[i][k]), None)
        if pivot is None:
            return 0
        rows[k], rows[pivot] = rows[pivot], rows[k]
        for i in range(k + 1, size):
            for j in range(k + 1, size):
                cross = rows[i][j] * rows[k][k] - rows[i][k] * rows[k][j]
                rows[i][j] = cross // before
        before = rows[k][k]
    return sign * rows[-1][-1]


def solve(a, b):
    """The x with a x = b, by elimination; a must be regular."""
    rows = [[Fraction(x) for x in (*row, right)] for row, right in zip(a, b)]
    for k in range(len(rows)):
        pivot = next(i for i in range(k, len(rows)) if rows[i][k])
        rows[k], rows[pivot] = rows[pivot], rows[k]
        rows[k] = [x / rows[k][k] for x in rows[k]]
        for i, row in enumerate(rows):
            if i != k and row[k]:
                rows[i] = [x - row[k] * y for x, y in zip(row, rows[k])]
    return [row[-1] for row in rows]
'''

MODULAR = '''\
"""Numbers modulo n."""


def inverse(a, n):
    """The x in [0, n) with a x = 1 modulo n."""
    r, s, x, y = a, n, 1, 0
    while s:
        quotient = r // s
        r, s, x, y = s, r - quotient * s, y, x - quotient * y
    if r != 1:
        raise ValueError(f"{a} has no inverse modulo {n}")
    return x


def remainders(pairs):
    """The least x >= 0 with x = r modulo n for each (r, n)."""
    x, product = 0, 1
    for r, n in pairs:
        x += product * ((r - x) * inverse(product % n, n) % n)
        product *= n
    return x
'''

TEST_DENSE = """\
import random
import unittest

from matrix.dense import determinant, identity, multiply, solve


def draw(rng, size):
    return [[rng.randrange(-9, 10) for _ in range(size)] for _ in range(size)]


class DenseTest(unittest.TestCase):
    def test_product_rule(self):
        rng = random.Random(1)
        for _ in range(40):
            a, b = draw(rng, 9), draw(rng, 9)
            product = determinant(a) * determinant(b)
            self.assertEqual(abs(determinant(multiply(a, b))), abs(product))

    def test_swap_turns_the_sign(self):
        for size in range(2, 12):
            rows = identity(size)
            rows[0], rows[-1] = rows[-1], rows[0]
            self.assertEqual(determinant(rows), -1)

    def test_solve(self):
        rng = random.Random(2)
        for _ in range(12):
            a, x = draw(rng, 8), [[rng.randrange(99)] for _ in range(8)]
            if determinant(a):
                right = [row[0] for row in multiply(a, x)]
                self.assertEqual(solve(a, right), [row[0] for row in x])
"""

TEST_MODULAR = """\
import math
import unittest

from matrix.modular import inverse, remainders


class ModularTest(unittest.TestCase):
    def test_inverse(self):
        for n in range(2, 190):
            for a in range(1, n):
                if math.gcd(a, n) == 1:
                    self.assertIn(inverse(a, n), range(n), f"inverse({a}, {n})")
                    self.assertEqual(a * inverse(a, n) % n, 1)

    def test_remainders(self):
        for x in range(5000):
            self.assertEqual(remainders([(x % n, n) for n in (7, 11, 13, 17)]), x)
"""

STRESS = '''\
"""python3 stress.py SEED: determinants against solutions, on matrices drawn with the seed"""

import random
import sys

from matrix.dense import determinant, solve
from matrix.modular import inverse

rng = random.Random(int(sys.argv[1]))
largest = 0
for _ in range(25):
    a = [[rng.randrange(2) * rng.randrange(-5, 6) for _ in range(7)] for _ in range(7)]
    if det := determinant(a):
        right = [rng.randrange(50) for _ in a]
        for j, x in enumerate(solve(a, right)):
            changed = [[*row[:j], value, *row[j + 1 :]] for row, value in zip(a, right)]
            assert x * det == determinant(changed), (a, right, j)
        largest = max(largest, abs(det))
for _ in range(2000):
    a = rng.randrange(1, 10007)
    assert inverse(a, 10007) == pow(a, -1, 10007), a
print(f"Cramer's rule holds; largest determinant {largest}; 2000 inverses are right")
'''


def _files() -> Files:
    return {
        "matrix/__init__.py": "",
        "matrix/dense.py": DENSE,
        "matrix/modular.py": MODULAR,
        "tests/__init__.py": "",
        "tests/test_dense.py": TEST_DENSE,
        "tests/test_modular.py": TEST_MODULAR,
        "stress.py": STRESS,
    }


_TESTS = "python3 -m unittest discover 2>&1 | grep -vE '^ |^$|^[-=]|Traceback'"
_DETERMINANT = (
    "sed -n '/^def determinant/,/^def solve/p' matrix/dense.py | head -n 15; "
    "python3 -m unittest tests.test_dense 2>&1 | tail -n 1"
)
_SIGN = (
    "sed -i '/^def determinant/,/^def solve/s/^\\( *\\)rows.k., rows.pivot. = .*/&\\n"
    "\\1if pivot != k:\\n\\1    sign = -sign/' matrix/dense.py && "
)
_NEGATIVE = (
    "python3 - <<'EOF'\n"
    "from matrix.modular import inverse\n"
    "primes = [n for n in range(2, 420) if all(n % d for d in range(2, n))]\n"
    "found = {(a, n): inverse(a, n) for n in primes for a in range(1, n)}\n"
    "bad = [pair for pair, x in found.items() if x < 0]\n"
    "print(f'{len(bad)} of {len(found)} are negative')\n"
    "for a, n in bad[:3]:\n"
    "    print(f'inverse({a}, {n}) = {found[a, n]}')\n"
    "print('all right modulo n:', all(a * x % n == 1 for (a, n), x in found.items()))\n"
    "EOF"
)
_RANGE = "sed -i '/^def inverse/,/^def rem/s/return x$/return x % n/' matrix/modular.py && "
_STRESS = "python3 stress.py $ROLLOUT_SEED"

TASK = Task(
    name="matrix-tests",
    prompt="Some tests of the matrix package fail. Find out why, repair the package (not the "
    "tests), and then run stress.py with your seed.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll run the whole suite and leave out the tracebacks' source lines, so that only "
                "the names of the failing tests and their messages remain.",
                _TESTS,
            ),
            say(
                "Let me see what fails before I read any code: all tests, with just the failures "
                "and the messages of their assertions.",
                _TESTS,
            ),
            say(
                "One module after the other: the tests of the dense matrices come first, then I "
                "count how long the package is.",
                "python3 -m unittest tests.test_dense 2>&1 | grep -vE '^ |^$|^[-=]|Traceback'; "
                "cat matrix/*.py | wc -l",
                then=(
                    turn(
                        say(
                            "The package has {{lines}} lines, and its determinant has a problem. "
                            "Now all the tests, the modular numbers included.",
                            _TESTS,
                        ),
                        lines=r"(\d+)\s*$",
                    ),
                ),
            ),
        ),
        turn(
            say(
                "{{failures}} tests fail, in two modules. I'll take the determinant first: a swap "
                "of rows should turn its sign. Let me read the function.",
                _DETERMINANT,
            ),
            say(
                "There are {{failures}} failures that have nothing in common. The wrong sign of a "
                "determinant is the easier one, so I look at that code.",
                _DETERMINANT,
            ),
            say(
                "{{failures}} failures, one for each module. The inverses seem easier; are they "
                "wrong in the tests of their own module alone, too?",
                "python3 -m unittest tests.test_modular 2>&1 | grep -vE '^ |^$|^[-=]|Traceback'",
                then=(
                    turn(
                        say(
                            "It is the same with {{example}}: the value is negative, which is easy "
                            "to repair. First the determinant, which I have to read.",
                            _DETERMINANT,
                        ),
                        example=r"(inverse\(\d+, \d+\))",
                    ),
                ),
            ),
            failures=r"failures=(\d+)",
        ),
        turn(
            say(
                "`{{sign}}` is set once and never changes, though rows are swapped further down. "
                "It has to flip at each real swap; then I run everything again.",
                _SIGN + _TESTS,
            ),
            say(
                "The loop swaps rows but leaves `{{sign}}` as it was at the start. I'll flip "
                "it when the pivot is in another row, and repeat all tests.",
                _SIGN + _TESTS,
            ),
            sign=r"size, (sign), before",
        ),
        turn(
            say(
                "What is left is {{left}}. inverse() promises a number from 0 to n; let me count "
                "over the primes how many results are below zero.",
                _NEGATIVE,
            ),
            say(
                "The determinant is fine now, and {{left}} remains. Is it only the range, or are "
                "the inverses wrong? I check them for all small primes.",
                _NEGATIVE,
            ),
            left=r"FAIL: (test_\w+)",
        ),
        turn(
            say(
                "{{bad}} come out negative, but all are right modulo n. So the result only has to "
                "be reduced at the end; I change the return and test again.",
                _RANGE + _TESTS,
            ),
            say(
                "Nothing is wrong but the range: {{bad}} are below zero. Returning x modulo n "
                "mends it. Then the whole suite once more.",
                _RANGE + _TESTS,
            ),
            bad=r"(\d+ of \d+) are negative",
        ),
        turn(
            say(
                "All {{ran}} tests pass. The stress test compares determinants with solutions of "
                "equations, on matrices that are drawn with my seed.",
                _STRESS,
            ),
            say(
                "{{ran}} tests and no failure any more. Last comes stress.py, with the seed of "
                "this rollout as the task wants it.",
                _STRESS,
            ),
            ran=r"Ran (\d+) tests",
        ),
        turn(
            say(
                "The package is repaired: the determinant flips its sign at a swap and inverse() "
                "stays in its range. The stress test went up to a determinant of {{largest}}."
            ),
            say(
                "Done, two repairs in two modules. With my seed the stress test found no "
                "contradiction, with determinants up to {{largest}}."
            ),
            largest=r"largest determinant (\d+)",
        ),
    ),
)
