#!/usr/bin/env python3
"""Write rows shaped like IMDb's title.principals.tsv to stdout.

The same seed and size always give the same bytes, and memory stays small whatever the
size. As in IMDb's file a field is never quoted, `\\N` is NULL, and `characters` is a
JSON array whose quotes and backslashes are plain data.
"""

import argparse
import random
import sys
from collections.abc import Iterator

HEADER = "tconst\tordering\tnconst\tcategory\tjob\tcharacters\n"

GIVEN = ["Ada", "Béla", "Chiyo", "Dmitri", "Eleni", "François", "Håkon", "Inés", "João", "Mei"]
FAMILY = ["Adeyemi", "Brandt", "Dvořák", "Eriksen", "Fontaine", "Horváth", "Ito", "Jansen"]
PLACES = ["Reporter", "Nurse", "Guest", "Taxi Driver", "Barista", "Sergeant", "Neighbour"]
JOBS = ["producer", "co-producer", "executive producer", "screenplay", "story by"]
JOBS += ['based on the novel "The Long Way"', "director of photography", "created by"]

# How often each category comes up among a hundred rows; those that play have characters.
CATEGORIES = {"actor": 24, "actress": 17, "self": 16, "writer": 12, "director": 9}
CATEGORIES |= {"producer": 9, "editor": 5, "cinematographer": 5, "composer": 3}
PLAYING = {"actor", "actress", "self"}
WITH_JOB = {"writer", "producer", "cinematographer"}

TAILS = 4096  # Different endings of a row: category, job, characters.


def main() -> None:
    """Write the header and as many rows as asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, help="how many rows to write")
    parser.add_argument("--bytes", type=int, help="stop at the first row past this size instead")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    out = sys.stdout.buffer
    if args.bytes is not None:
        for block in blocks_of_bytes(args.bytes, args.seed):
            out.write(block)
        return
    for block in blocks(5_000_000 if args.rows is None else args.rows, args.seed):
        out.write(block)


def blocks(rows: int, seed: int) -> Iterator[bytes]:
    """The header, then `rows` rows, in blocks of about half a megabyte."""
    source = random.Random(seed)
    tails = [tail(source) for _ in range(TAILS)]
    draw = source.getrandbits
    lines = [HEADER]
    title = made = 0
    while made < rows:
        title += 1
        cast = min(4 + draw(3), rows - made)
        for ordering in range(1, cast + 1):
            bits = draw(36)
            name = (bits >> 12) % 9_000_000 + 1
            lines.append(f"tt{title:07}\t{ordering}\tnm{name:07}\t{tails[bits & 4095]}")
        made += cast
        if len(lines) >= 8192:
            yield "".join(lines).encode()
            lines = []
    yield "".join(lines).encode()


def blocks_of_bytes(size: int, seed: int) -> Iterator[bytes]:
    """At least `size` bytes and then to the end of a row, out of one block again and again.

    For measuring memory: making every row anew would keep a core busy that the program
    under test needs.
    """
    block = b"".join(blocks(100_000, seed))
    header = HEADER.encode()
    yield header
    block = block[len(header) :]
    left = size - len(header)
    while left > len(block):
        yield block
        left -= len(block)
    if left > 0:
        yield block[: block.index(b"\n", left - 1) + 1]


def rows_of_bytes(size: int, seed: int = 1) -> int:
    """How many rows `blocks_of_bytes` makes of a size."""
    counts = {}
    rows = -1  # The header is a line too.
    for block in blocks_of_bytes(size, seed):
        if id(block) not in counts:
            counts[id(block)] = (block.count(b"\n"), block)
        rows += counts[id(block)][0]
    return rows


def tail(source: random.Random) -> str:
    """The last three fields of a row and its newline."""
    names, weights = zip(*CATEGORIES.items(), strict=True)
    category = source.choices(names, weights)[0]
    job = characters = "\\N"
    if category in WITH_JOB and source.random() < 0.7:
        job = source.choice(JOBS)
    if category == "self":
        note = source.choice(PLACES)
        characters = source.choice(['["Self"]', f'["Self - \\"{note}\\""]', '["Self - Host"]'])
    elif category in PLAYING and source.random() < 0.9:
        roles = [character(source) for _ in range(source.choice([1, 1, 1, 2]))]
        characters = "[" + ",".join(f'"{role}"' for role in roles) + "]"
    return f"{category}\t{job}\t{characters}\n"


def character(source: random.Random) -> str:
    """A role, as it stands inside JSON."""
    given, family = source.choice(GIVEN), source.choice(FAMILY)
    nickname = f'{given} \\"{source.choice(PLACES)}\\" {family}'
    place = f"{source.choice(PLACES)} #{source.randint(1, 9)}"
    return source.choice([given, f"{given} {family}", nickname, place])


if __name__ == "__main__":
    main()
