"""A few hundred old letters and an index of their words that misses some."""

import random

from .base import Files, Task, say, tarball, turn

__all__ = ["TASK"]

SYLLABLES = ("ba", "den", "fir", "gal", "ho", "kel", "lum", "mar", "nor", "pe", "ros", "tor", "ver")
NAMED = ("harbour", "lantern", "glacier", "orchard", "telegraph", "winter", "captain", "ledger")


def _files() -> Files:
    rng = random.Random("word-index")
    made = sorted({"".join(rng.choices(SYLLABLES, k=rng.randint(2, 3))) for _ in range(1400)})
    words = [*made[:90], *NAMED, *made[90:]]
    weights = [1 / (rank + 20) for rank in range(len(words))]
    tree = {}
    for number in range(1, 321):
        lines = []
        for _ in range(24):
            line = rng.choices(words, weights, k=12)
            line[0] = line[0].capitalize()
            line[rng.randint(2, 9)] += ","
            lines.append(" ".join(line) + ".")
        tree[f"letters/{1860 + number // 20}/l{number:03d}.txt"] = "\n".join(lines) + "\n"
    return {"letters.tar.gz": tarball(tree)}


_UNPACK = (
    "tar xzf letters.tar.gz && find letters -name '*.txt' | wc -l && "
    "cat letters/*/*.txt | tr -s ' ' '\\n' | sort -u | wc -l"
)
_BUILD = (
    "cat > build.py <<'EOF'\n"
    "import collections, glob, json, re\n"
    "index = collections.defaultdict(list)\n"
    "paths = sorted(glob.glob('letters/*/*.txt'))\n"
    "for number, path in enumerate(paths):\n"
    "    for word in sorted(set(open(path).read().split())):\n"
    "        index[word].append(number)\n"
    "with open('index.json', 'w') as out:\n"
    "    json.dump({'paths': paths, 'words': index}, out)\n"
    "print(f'{len(paths)} letters, {len(index)} words, {sum(map(len, index.values()))} entries')\n"
    "EOF\n"
    "python3 build.py"
)
_QUERY = (
    "cat > query.py <<'EOF'\n"
    "import json, sys\n"
    "index = json.load(open('index.json'))\n"
    "found = [set(index['words'].get(word, [])) for word in sys.argv[1:]]\n"
    "both = sorted(set.intersection(*found))\n"
    "print(f'{len(both)} letters with', ' and '.join(sys.argv[1:]))\n"
    "print(*(index['paths'][number] for number in both[:4]), sep='\\n')\n"
    "EOF\n"
    "python3 query.py lantern glacier"
)
_GREP = (
    "for word in lantern glacier telegraph orchard winter captain; do "
    'echo "$word: $(grep -rliw "$word" letters | wc -l) letters"; done; '
    "grep -rliw lantern letters | xargs grep -liw glacier | wc -l"
)
_REBUILD = (
    "sed -i \"s/open(path).read().split()/re.findall('[a-z]+', open(path).read().lower())/\" "
    "build.py && python3 build.py && python3 query.py lantern glacier"
)
_SHRINK = (
    "python3 - <<'EOF'\n"
    "import itertools, json\n"
    "index = json.load(open('index.json'))\n"
    "for word, numbers in index['words'].items():\n"
    "    index['words'][word] = [b - a for a, b in itertools.pairwise([0, *numbers])]\n"
    "json.dump(index, open('gaps.json', 'w'), separators=(',', ':'))\n"
    "EOF\n"
    "gzip -9nkf index.json gaps.json && wc -c index.json* gaps.json*"
)
_VERIFY = (
    "cat > verify.py <<'EOF'\n"
    "import gzip, itertools, json, random, re, sys\n"
    "index = json.load(gzip.open('gaps.json.gz'))\n"
    "texts = [set(re.findall('[a-z]+', open(p).read().lower())) for p in index['paths']]\n"
    "drawn = random.Random(int(sys.argv[1])).sample(sorted(index['words']), 300)\n"
    "print('drawn:', ', '.join(drawn[:4]), '...')\n"
    "same = 0\n"
    "for word in drawn:\n"
    "    numbers = list(itertools.accumulate(index['words'][word]))\n"
    "    same += numbers == [n for n, text in enumerate(texts) if word in text]\n"
    "print(f'{same} of {len(drawn)} words agree with the letters')\n"
    "EOF\n"
    "python3 verify.py $ROLLOUT_SEED"
)

TASK = Task(
    name="word-index",
    prompt="Build an index of the words in letters.tar.gz (which letters hold a word, in either "
    "case), make it small with gzip, and verify it with words drawn by your seed.",
    make_files=_files,
    turns=(
        turn(
            say(
                "I'll unpack the letters first and count them, and their distinct words, so that I "
                "know how large the index may become.",
                _UNPACK,
            ),
            say(
                "How much text is it? I unpack the archive and count letters and distinct words "
                "before I decide how to build the index.",
                _UNPACK,
            ),
            say(
                "First the archive: I unpack it, count the letters by year, and sort all lines "
                "to read the first one.",
                "tar xzf letters.tar.gz && find letters -name '*.txt' | wc -l && "
                "find letters -name '*.txt' | cut -d/ -f2 | sort | uniq -c && "
                "cat letters/*/*.txt | sort | head -n 1",
            ),
        ),
        turn(
            say(
                "{{letters}} letters fit into memory easily. A script collects the numbers of the "
                "letters under each word and stores them as JSON.",
                _BUILD,
            ),
            say(
                "With {{letters}} letters a plain dictionary will do: under each word the numbers "
                "of its letters, in order, in one JSON file.",
                _BUILD,
            ),
            say(
                "There are {{letters}} letters. Which words are frequent? Those get the longest "
                "lists, so I look at the top of the count before I build anything.",
                "cat letters/*/*.txt | tr 'A-Z' 'a-z' | grep -oE '[a-z]+' | sort | uniq -c | "
                "sort -rn | head -n 6",
                then=(
                    turn(
                        say(
                            "The most frequent word comes {{top}} times, which is no problem. I'll "
                            "build the index as a dictionary in a JSON file.",
                            _BUILD,
                        ),
                        top=r"(\d+) \w",
                    ),
                ),
            ),
            letters=r"(?m)^(\d+)$",
        ),
        turn(
            say(
                "The index holds {{words}} words. Now a script that asks it: the letters that have "
                "all the words which I name, say lantern and glacier.",
                _QUERY,
            ),
            say(
                "{{words}} words are more than I thought, but let me ask something first: which "
                "letters mention both a lantern and a glacier?",
                _QUERY,
            ),
            words=r"(\d+) words",
        ),
        turn(
            say(
                "{{both}} letters for the pair, which seems few. grep can count the same without "
                "the index; I'll let it ignore case and take whole words.",
                _GREP,
            ),
            say(
                "The index answers with {{both}} letters. To be sure of it I count with grep, "
                "word by word and for the pair, in either case.",
                _GREP,
            ),
            say(
                "{{both}} letters have both. Do the keys of the index look right at all? I suspect "
                "commas and capitals in them, so I'll list the keys for lantern.",
                "python3 - <<'EOF'\n"
                "import json\n"
                "words = json.load(open('index.json'))['words']\n"
                "print(*(f'{w}: {len(words[w])}' for w in words if 'lantern' in w.lower()))\n"
                "print(sum(not (w.isalpha() and w.islower()) for w in words), 'keys are odd')\n"
                "EOF",
                then=(
                    turn(
                        say(
                            "{{odd}} keys carry a capital or a comma. What should the numbers be? "
                            "grep tells, for some words and for the pair.",
                            _GREP,
                        ),
                        odd=r"(\d+) keys",
                    ),
                ),
            ),
            both=r"(\d+) letters with",
        ),
        turn(
            say(
                "grep finds {{true}} letters with both. The index splits at spaces only, so a "
                "comma or a capital makes another word. I'll take letters alone, in lower case.",
                _REBUILD,
            ),
            say(
                "By grep it should be {{true}}. The script keeps commas and capitals in its words; "
                "it has to look for runs of letters in lower case. Then I ask again.",
                _REBUILD,
            ),
            true=r"(\d+)\s*$",
        ),
        turn(
            say(
                "Now the index says {{both}} as well, like grep. Next its size: I store the gaps "
                "between numbers, which are small, and compress both forms to compare.",
                _SHRINK,
            ),
            say(
                "{{both}} letters, the same as grep. Sorted numbers compress better as "
                "differences, so I write those too and see what gzip makes of either.",
                _SHRINK,
            ),
            both=r"(\d+) letters with",
        ),
        turn(
            say(
                "The compressed gaps take {{size}} bytes, the smallest of the four. I'll verify "
                "that file: words drawn with my seed, against the letters themselves.",
                _VERIFY,
            ),
            say(
                "{{size}} bytes for the gaps after gzip. A last check reads that file back and "
                "compares 300 words of this rollout's draw with the text.",
                _VERIFY,
            ),
            size=r"(\d+) gaps\.json\.gz",
        ),
        turn(
            say(
                "The index is in gaps.json.gz. Of the words that my seed drew, {{same}} agree with "
                "the letters; before the repair, commas and capitals hid many of them."
            ),
            say(
                "Finished: {{same}} words agree, so gaps.json.gz is a true index. build.py makes "
                "it, and verify.py repeats the test with any seed."
            ),
            same=r"(\d+ of \d+) words agree",
        ),
    ),
)
