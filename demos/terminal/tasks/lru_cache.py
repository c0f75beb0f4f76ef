"""A cache that forgets the wrong entry; its tests compare it with a slow model."""

from .base import Files, Task, say, turn

__all__ = ["TASK"]

CACHE = '''\
"""A cache of bounded size that forgets what was not used for longest."""


class Cache:
    def __init__(self, size):
        self.size = size
        self.entries = {}

    def get(self, key):
        return self.entries.get(key)

    def put(self, key, value):
        self.entries[key] = value
        if len(self.entries) > self.size:
            oldest = next(iter(self.entries))
            del self.entries[oldest]
'''

TEST = '''\
import random
import unittest

from cache import Cache


class Model:
    """The same by brute force: a list in order of use."""

    def __init__(self, size):
        self.size, self.items = size, []

    def get(self, key):
        for item in self.items:
            if item[0] == key:
                self.items.remove(item)
                self.items.append(item)
                return item[1]

    def put(self, key, value):
        self.items = [item for item in self.items if item[0] != key] + [(key, value)]
        self.items = self.items[-self.size:]


def compare(case, seed, steps):
    rng = random.Random(seed)
    cache, model = Cache(8), Model(8)
    for step in range(steps):
        key = rng.randrange(14)
        if rng.random() < 0.5:
            cache.put(key, step), model.put(key, step)
        else:
            case.assertEqual(cache.get(key), model.get(key), f"step {step}, key {key}")


class CacheTest(unittest.TestCase):
    def test_small(self):
        cache = Cache(2)
        cache.put("a", 1), cache.put("b", 2), cache.get("a"), cache.put("c", 3)
        self.assertEqual(sorted(cache.entries), ["a", "c"])

    def test_overwrite(self):
        cache = Cache(2)
        cache.put("a", 1), cache.put("b", 2), cache.put("a", 3), cache.put("c", 4)
        self.assertEqual(sorted(cache.entries), ["a", "c"])

    def test_against_the_model(self):
        for seed in range(20):
            compare(self, seed, 2000)

    def test_bound(self):
        cache = Cache(5)
        for number in range(50000):
            cache.put(number, number)
        self.assertEqual(len(cache.entries), 5)
'''

FUZZ = '''\
"""A longer comparison with a seed of one's own: python3 fuzz.py SEED"""

import sys
import unittest

from test_cache import compare

seed = int(sys.argv[1])
for round_ in range(8):
    compare(unittest.TestCase(), seed + round_, 6000)
print(f"seed {seed}: 8 rounds of 6000 steps, no difference")
'''

BENCH = '''\
"""python3 bench.py: how long 100,000 operations take"""

import random
import time

from cache import Cache

rng = random.Random(7)
start = time.perf_counter()
cache = Cache(512)
hits = 0
for number in range(100000):
    key = int(rng.expovariate(0.003))
    if cache.get(key) is None:
        cache.put(key, number)
    else:
        hits += 1
print(f"100000 operations, {hits} hits, {time.perf_counter() - start:.2f}s")
'''


def _files() -> Files:
    return {"cache.py": CACHE, "test_cache.py": TEST, "fuzz.py": FUZZ, "bench.py": BENCH}


_TESTS = "python3 -m unittest test_cache 2>&1 | grep -vE '^ |^$|^[-=]|Traceback'"

_GET = (
    "python3 - <<'EOF'\n"
    "text = open('cache.py').read()\n"
    "text = text.replace('        return self.entries.get(key)\\n', '''\\\n"
    "        if key not in self.entries:\n"
    "            return None\n"
    "        self.entries[key] = value = self.entries.pop(key)\n"
    "        return value\n"
    "''')\n"
    "open('cache.py', 'w').write(text)\n"
    "EOF\n"
)
_PUT = (
    "sed -i 's/^        self.entries.key. = value$/        self.entries.pop(key, None)\\n&/' "
    "cache.py"
)

TASK = Task(
    name="lru-cache",
    prompt="cache.py should forget the entry that was not used for longest, but it forgets "
    "others. Repair it until test_cache.py passes, then try fuzz.py with your seed.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll read the cache first; a class like this fits on one screen. After that the "
                "tests will tell me what it does wrong.",
                "cat cache.py",
            ),
            say(
                "Let me see the implementation before I run the tests. I expect something about "
                "the order in which the entries are kept.",
                "cat cache.py",
            ),
        ),
        turn(
            say(
                "{{method}} returns the value but leaves the order alone, so use doesn't count. "
                "Running the tests to see whether that is all of it.",
                _TESTS,
            ),
            say(
                "The dict keeps the order of insertion, and {{method}} never moves an entry to "
                "the end. I'd like the tests to confirm that.",
                _TESTS,
            ),
            say(
                "{{method}} does not refresh the entry. How fast is it as it is now? I'll take "
                "the benchmark first, so that I notice if my fix makes it slow.",
                "python3 bench.py",
                then=(
                    turn(
                        say(
                            "The old code has {{hits}} hits in 100000 operations. I keep that in "
                            "mind and run the tests now.",
                            _TESTS,
                        ),
                        hits=r"(\d+) hits",
                    ),
                ),
            ),
            method=r"def (get\(self, key\))",
        ),
        turn(
            say(
                "{{failures}} of the tests fail. I'll make get() pop the entry and put it back, "
                "which moves it to the end of the dict, and run the tests again.",
                _GET + _TESTS,
            ),
            say(
                "FAILED with {{failures}} failures, as expected. The first step: get() has to "
                "move the entry to the end. Then I repeat the tests.",
                _GET + _TESTS,
            ),
            say(
                "{{failures}} failures. put() has the same weakness when it overwrites a key, and "
                "it is the smaller change, so I'll do that one first.",
                _PUT + "\n" + _TESTS,
                then=(
                    turn(
                        say(
                            "Still {{failures}} failing, which leaves get(). It must move what it "
                            "finds to the end of the dict.",
                            _GET + _TESTS,
                            then=(
                                turn(
                                    say(
                                        "{{ran}} tests and no failure. The fuzzer may try it now "
                                        "with the seed of this rollout.",
                                        "python3 fuzz.py $ROLLOUT_SEED",
                                    ),
                                    ran=r"Ran (\d+) tests",
                                ),
                                turn(
                                    say(
                                        "The cache is repaired: put() and get() both count as use "
                                        "now, and the fuzzer with seed {{seed_used}} found no "
                                        "difference from the model."
                                    ),
                                    seed_used=r"seed (\d+)",
                                ),
                            ),
                            rejoin=False,
                        ),
                        failures=r"failures=(\d+)",
                    ),
                ),
                rejoin=False,
            ),
            failures=r"failures=(\d+)",
        ),
        turn(
            say(
                "Now {{failures}} still fail, and it is the overwriting: assigning to a key that "
                "exists keeps its old place. put() should pop it first.",
                _PUT + "\n" + _TESTS,
            ),
            say(
                "Better, {{failures}} to go. put() on an existing key doesn't move it either, "
                "since a dict keeps the first position. One line before the assignment.",
                _PUT + "\npython3 -m unittest test_cache 2>&1 | tail -n 3",
            ),
            failures=r"failures=(\d+)",
        ),
        turn(
            say(
                "All {{ran}} tests pass. The benchmark tells whether popping and reinserting on "
                "each hit costs too much.",
                "python3 bench.py",
            ),
            say(
                "{{ran}} tests, all fine. A quick benchmark, since every get() now writes to the "
                "dict as well.",
                "python3 bench.py",
            ),
            ran=r"Ran (\d+) tests",
        ),
        turn(
            say(
                "{{hits}} hits, and quick enough. Last comes the fuzzer, with the seed that was "
                "given to this rollout.",
                "python3 fuzz.py $ROLLOUT_SEED",
            ),
            say(
                "The benchmark has {{hits}} hits, no reason to worry. Now the long comparison with "
                "my own seed.",
                "python3 fuzz.py $ROLLOUT_SEED",
            ),
            hits=r"(\d+) hits",
        ),
        turn(
            say(
                "The cache is repaired: get() and put() both count as use now. The fuzzer with "
                "seed {{seed_used}} found no difference from the model."
            ),
            say(
                "Finished. Seed {{seed_used}} went through the fuzzer without a difference; the "
                "fix is four lines in cache.py."
            ),
            seed_used=r"seed (\d+)",
        ),
    ),
)
