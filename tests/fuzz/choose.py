#!/usr/bin/env python3
"""usage: choose.py CONTROL_FILE LIMIT

Called by tests/fuzz/run --minimise. Prints the names of at most LIMIT inputs, those that reach most, one a line. The
control file of libFuzzer's -set_cover_merge says what each input reaches: a feature is an edge and how often it is
taken, eight ranges of counts for each edge. An edge that nothing else takes counts as ten features, because a branch
that no input takes is lost whole.
"""
import sys

EDGE = 10


def read(path):
    """The inputs' names, and the features and sizes of each by its number."""
    lines = open(path).read().split("\n")
    count = int(lines[0])
    features, sizes = {}, {}
    for line in lines[2 + count:]:
        kind, *numbers = line.split() or [""]
        if kind == "STARTED":
            sizes[int(numbers[0])] = int(numbers[1])
        elif kind == "FT":
            features[int(numbers[0])] = {int(n) for n in numbers[1:]}
    return lines[2:2 + count], features, sizes


def choose(features, sizes, limit):
    """Takes the input that adds most, the shorter one of two, until none adds anything."""
    left = dict(features)
    reached, edges, chosen = set(), set(), []
    while left and len(chosen) < limit:
        for i in left:
            left[i] = left[i] - reached
        worth = {i: len(new) + EDGE * len({f // 8 for f in new} - edges) for i, new in left.items()}
        best = max(worth, key=lambda i: (worth[i], -sizes[i], -i))
        if worth[best] == 0:
            break
        new = left.pop(best)
        reached |= new
        edges |= {f // 8 for f in new}
        chosen.append(best)
    return chosen, reached, edges


def main():
    names, features, sizes = read(sys.argv[1])
    chosen, reached, edges = choose(features, sizes, int(sys.argv[2]))
    for i in chosen:
        print(names[i])
    every = set().union(*features.values())
    print(f"{len(chosen)} of {len(names)} inputs, {len(edges)} of {len({f // 8 for f in every})} edges, "
          f"{len(reached)} of {len(every)} features", file=sys.stderr)


main()
