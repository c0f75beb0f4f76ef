"""Orders and customers as CSV files whose plain join counts some orders twice."""

import random

from .base import Files, Task, say, tarball, turn

__all__ = ["TASK"]

REGIONS = ("central", "east", "north", "south", "west")


def _files() -> Files:
    rng = random.Random("csv-join")
    customers = ["id,region,since"]
    customers += [
        f"C{number:04d},{rng.choice(REGIONS)},{rng.randint(2009, 2019)}"
        for number in range(1, 2401)
    ]
    moved = rng.sample(range(1, 2401), 37)
    customers += [f"C{number:04d},{rng.choice(REGIONS)},2021" for number in sorted(moved)]
    rows = [
        f"{100000 + 3 * number},C{rng.randint(1, 2400):04d},{rng.randint(500, 40000)}"
        for number in range(26000)
    ]
    again = rng.sample(range(2000, 26000), 58)
    for place in sorted(again, reverse=True):
        rows.insert(place, rows[place - 1500])
    orders = "\n".join(["order,customer,cents", *rows]) + "\n"
    return {
        "data.tar.gz": tarball({"customers.csv": "\n".join(customers) + "\n", "orders.csv": orders})
    }


_LOOK = "tar xzf data.tar.gz && wc -l *.csv && head -n 3 customers.csv orders.csv"


_PLAIN = (
    "cat > totals.py <<'EOF'\n"
    "import csv, sqlite3\n"
    "db = sqlite3.connect(':memory:')\n"
    "db.execute('create table customers (id, region, since integer)')\n"
    "db.execute('create table orders (id, customer, cents integer)')\n"
    "for name in ('customers', 'orders'):\n"
    "    with open(f'{name}.csv', newline='') as file:\n"
    "        rows = list(csv.reader(file))[1:]\n"
    "    db.executemany(f'insert into {name} values (?, ?, ?)', rows)\n"
    "total = 0\n"
    "for region, count, cents in db.execute('''\n"
    "    select region, count(*), sum(cents) from orders join customers\n"
    "    on orders.customer = customers.id group by region order by region'''):\n"
    "    print(f'{region},{count},{cents}')\n"
    "    total += cents\n"
    "print(f'total,,{total}')\n"
    "EOF\n"
    "python3 totals.py"
)
_REPLACE = "s/insert into/insert or replace into/; s/customers (id,/customers (id primary key,/"
_NEWEST = f"sed -i '{_REPLACE}' totals.py && python3 totals.py"
_BOTH = (
    f"sed -i '{_REPLACE}; s/orders (id,/orders (id primary key,/' totals.py && python3 totals.py"
)
_CHECK = (
    "awk -F, 'NR > 1 {n++; sum += $3} END {printf \"orders.csv: %d rows, %d cents\\n\", n, sum}' "
    'orders.csv; python3 totals.py | awk -F, \'NF == 3 {n += $2} END {print "joined:", n, "rows"}\''
)
_TWICE = (
    'for f in customers orders; do echo "$f: $(tail -n +2 $f.csv | cut -d, -f1 | sort | uniq -d '
    '| tee twice-$f.txt | wc -l) ids more than once"; done; '
    "grep -F -f <(head -n 2 twice-customers.txt) customers.csv | sort; "
    "grep -F -f <(head -n 2 twice-orders.txt) orders.csv | sort"
)
_UNIQUE = (
    "tail -n +2 orders.csv | sort -u | awk -F, '{n++; sum += $3} "
    'END {printf "%d distinct orders, %d cents\\n", n, sum}\'; python3 totals.py | tail -n 1'
)
_DELIVER = (
    "python3 totals.py > totals-$ROLLOUT_ID.csv && wc -l totals-*.csv && "
    "cut -d, -f1,3 totals-$ROLLOUT_ID.csv"
)

TASK = Task(
    name="csv-join",
    prompt="data.tar.gz holds orders.csv and customers.csv. I need the order totals by region, in "
    "cents, as a CSV file; a customer who moved counts for the newest region.",
    make_files=_files,
    turns=(
        turn(
            say(
                "Unpack, count the rows and read the first lines of both files: that tells me what "
                "to join on.",
                _LOOK,
            ),
            say(
                "I start with a look at the two files, their sizes and their columns.",
                _LOOK,
            ),
        ),
        turn(
            say(
                "{{rows}} lines of orders, and `customer` refers to `id`. The straightforward way "
                "first: load both into SQLite and sum over the join.",
                _PLAIN,
            ),
            say(
                "A join on the customer's id should do. With {{rows}} lines an SQLite database in "
                "memory is quick enough, and the query stays readable.",
                _PLAIN,
            ),
            say(
                "{{rows}} lines of orders. Before I join I'd like to know that each order has its "
                "customer and which regions there are.",
                "cut -d, -f2 customers.csv | sort | uniq -c; comm -13 <(cut -d, -f1 customers.csv "
                "| sort -u) <(tail -n +2 orders.csv | cut -d, -f2 | sort -u) | wc -l",
                then=(
                    turn(
                        say(
                            "No order lacks its customer, and {{west}} rows of customers are in "
                            "the west alone. Now the join.",
                            _PLAIN,
                        ),
                        west=r"(\d+) west",
                    ),
                ),
            ),
            rows=r"(\d+) orders\.csv",
        ),
        turn(
            say(
                "The join adds up to {{total}} cents. I won't trust that before it agrees with the "
                "sum of orders.csv by itself.",
                _CHECK,
            ),
            say(
                "{{total}} in total. Joins like to multiply rows, so I'll add up the orders "
                "without any join and compare.",
                _CHECK,
            ),
            total=r"total,,(\d+)",
        ),
        turn(
            say(
                "orders.csv has only {{cents}} cents and fewer rows than the join: the first total "
                "was wrong. Some ids must occur more than once; I'll count them in both files.",
                _TWICE,
            ),
            say(
                "That doesn't agree: {{cents}} cents without the join. Rows were multiplied, so a "
                "key isn't unique. Which ids are there twice?",
                _TWICE,
            ),
            say(
                "{{cents}} is less than what the join gave. Customers who moved have two rows, as "
                "the task says, so I take the newest of them.",
                _NEWEST,
                then=(
                    turn(
                        say(
                            "Now it is {{total}}, which equals the sum of the file. Is every order "
                            "in there just once, though? I'll look for repeated ids.",
                            _TWICE,
                        ),
                        total=r"total,,(\d+)",
                    ),
                ),
            ),
            cents=r"rows, (\d+) cents",
        ),
        turn(
            say(
                "{{moved}} customers moved, and some orders were exported twice, the same line "
                "again. With the ids as primary keys and `insert or replace`, the last row of each "
                "stays, which is the newest.",
                _BOTH,
            ),
            say(
                "Two causes: {{moved}} customers with an old and a new region, and repeated "
                "orders. Primary keys keep one row for each id, the later one.",
                _BOTH,
            ),
            say(
                "{{moved}} customers have two regions; the later row is the newer. One thing at a "
                "time: a primary key for the customers first, and see what the total does.",
                _NEWEST,
                then=(
                    turn(
                        say(
                            "{{total}}: the sum of the file with its repeated lines. The same key "
                            "for the orders drops those.",
                            _BOTH,
                        ),
                        total=r"total,,(\d+)",
                    ),
                ),
            ),
            moved=r"customers: (\d+) ids",
        ),
        turn(
            say(
                "{{total}} now. The same by another way, the distinct lines of the file with sort "
                "and awk, has to give that number too.",
                _UNIQUE,
            ),
            say(
                "The total is {{total}}. I'll verify it without SQLite: distinct order lines, "
                "summed by awk.",
                _UNIQUE,
            ),
            total=r"total,,(\d+)\s*$",
        ),
        turn(
            say(
                "Both ways give {{sum}} cents. I'll write the file under this rollout's name and "
                "read it once.",
                _DELIVER,
            ),
            say(
                "They agree on {{sum}}. What remains is to hand the table over as a CSV file.",
                _DELIVER,
            ),
            sum=r"orders, (\d+) cents",
        ),
        turn(
            say(
                "The totals by region are in {{file}}. Customers who moved count once, in their "
                "newest region, and orders exported twice are counted once."
            ),
            say(
                "Done, see {{file}}. The first join was too high: it counted moved customers and "
                "repeated orders twice; the final total was checked without the join."
            ),
            file=r"(totals-\S+\.csv)",
        ),
    ),
)
