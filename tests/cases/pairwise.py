#!/usr/bin/env python3
"""Writes pairwise.txt beside it: few cases in which every two features stand together, forward and backward.

Where two features meet, faults are found, and all combinations would be billions. After a change of the tables below,
run this script and keep what it writes. It gives the same rows for the same tables; it is greedy, so they are not the
fewest.
"""
import itertools
import pathlib
import random

VISIBILITIES = ["", "causal", "causal align=top-left", "window=9,4", "causal window=30,0",
                "window=20,40 align=offset offset=-30", "causal align=offset offset=110"]

# Features and their levels, as words of a case line. Words in braces depend on the shape: {b}, {h}, {m} and {n} are
# batch, query heads, queries and keys.
FORWARD = {
    "dtype": ["dtype=f32", "dtype=f16", "dtype=bf16"],
    "heads": ["h=2", "hq=6 hkv=2", "hq=4 hkv=1"],
    "queries": ["sq=97", "sq=1", "sq=7", "sq=16", "sq=203"],
    "keys": ["skv=113", "skv=1", "skv=64", "skv=147", "skv=799"],
    "head dims": ["d=64", "d=8", "dqk=59 dv=64", "dqk=80 dv=111"],
    "layout": ["", "layout=bshd", "layout=bshd pad=3"],
    "visibility": VISIBILITIES,
    "mask": ["", "mask=bool mask_shape={b},{h},{m},{n}", "mask=bool mask_shape=1,1,1,{n} mask_fill=banded",
             "mask=float mask_shape={m},{n} mask_fill=tail", "mask=float mask_shape={b},1,{m},{short_n}",
             "mask=float mask_shape={b},{h},{m},{n} mask_fill=rows",
             "mask=float mask_shape={b},1,{m},{n} mask_fill=lowest"],
    "softcap": ["", "softcap=3"],
    "lengths": ["", "{lengths}"],
    "offsets": ["", "{offsets}"],
    "slopes": ["", "{slopes}"],
    "sinks": ["", "{sinks}"],
    "splits": ["", "splits=3"],
    "cut": ["", "max_flops={cut}"],
    "invariance": ["", "batch_invariant"],
    "kernel": ["", "kernel=tiles"],
}

# One pair of head dims, small and odd: each is three pipelines more for a row. backward.txt has others.
BACKWARD = {
    "dtype": ["dtype=f32", "dtype=f16", "dtype=bf16"],
    "heads": ["h=2", "hq=6 hkv=2", "hq=4 hkv=1"],
    "queries": ["sq=97", "sq=1", "sq=16", "sq=203"],
    "keys": ["skv=113", "skv=1", "skv=64", "skv=299"],
    "head dims": ["dqk=27 dv=40"],
    "layout": ["", "layout=bshd", "layout=bshd pad=3"],
    "visibility": VISIBILITIES,
    "mask": ["", "mask=bool mask_shape={b},{h},{m},{n}", "mask=float mask_shape={b},{h},{m},{n} mask_fill=tail",
             "mask=float mask_shape={h},{m},{n}", "mask=float mask_shape={b},{h},1,{n}",
             "mask=float mask_shape={b},1,{m},{short_n}", "mask=float mask_shape={m},{n} mask_fill=rows",
             "mask=float mask_shape={b},1,{m},{n} mask_fill=lowest"],
    "softcap": ["", "softcap=3"],
    "lengths": ["", "{lengths}"],
    "offsets": ["", "{offsets}"],
    "slopes": ["", "{slopes}"],
    "sinks": ["", "{sinks}"],
    "dlse": ["", "dlse"],
    "cut": ["", "max_flops={cut}"],
    "invariance": ["", "batch_invariant"],
    "slices": ["", "tuning=q_slices=2,kv_slices=4"],
    "gradients": ["", "grads=bshd", "grads=bhsd"],
}

EXCLUDED = [("splits", "batch_invariant"),  # parts that are asked for depend on seqlen_kv
            ("align=", "{offsets}")]  # offsets per batch are an alignment of their own
TRIES = 40  # rows that are made to take the best of


def compatible(a, b):
    return not any((x in a and y in b) or (y in a and x in b) for x, y in EXCLUDED)


def kind_of(names, row):
    """What rows that share their pipelines have in common."""
    kind, extra = "", False
    for name, words in zip(names, row):
        if name == "mask":
            kind += words[:len("mask=bool")]
        if name == "queries":
            kind += "few" if words in ("sq=1", "sq=7") else "many"
        if name in ("dtype", "head dims", "softcap", "splits", "invariance", "kernel", "slices"):
            kind += words
        extra = extra or (name in ("mask", "lengths", "offsets") and words != "")
    return kind + ("extra" if extra else "")


class Generator:
    """Makes rows, which have a level of each feature, until every pair of compatible levels stands in one."""

    def __init__(self, features):
        self.names, self.levels = list(features), list(features.values())
        self.random = random.Random()
        state = [5489]  # as C++ begins std::mt19937
        for i in range(1, 624):
            state.append((1812433253 * (state[-1] ^ state[-1] >> 30) + i) & 0xffffffff)
        self.random.setstate((3, (*state, 624), None))
        # The pairs that no row holds yet, in order: (feature, words, feature, words).
        self.open = {(f, x, g, y): True for f, g in itertools.combinations(range(len(self.names)), 2)
                     for x in self.levels[f] for y in self.levels[g] if compatible(x, y)}

    def is_open(self, f, x, g, y):
        return ((f, x, g, y) if f < g else (g, y, f, x)) in self.open

    def pairs_of(self, row):
        return [(f, row[f], g, row[g]) for f, g in itertools.combinations(range(len(row)), 2)]

    def below(self, count):
        return self.random.getrandbits(32) % count

    def best_level(self, row, f):
        """The level that closes most pairs with what is chosen; ties go to another one each time."""
        start = self.below(len(self.levels[f]))
        levels = self.levels[f][start:] + self.levels[f][:start]
        chosen = [(g, y) for g, y in enumerate(row) if y is not None]
        fitting = [x for x in levels if all(compatible(x, y) for _, y in chosen)]
        return max(fitting, key=lambda x: sum(self.is_open(f, x, g, y) for g, y in chosen))

    def row_with(self, pair):
        row = [None] * len(self.names)
        row[pair[0]], row[pair[2]] = pair[1], pair[3]
        order = list(range(len(row)))
        for i in range(len(row), 1, -1):
            j = self.below(i)
            order[i - 1], order[j] = order[j], order[i - 1]
        for f in order:
            if row[f] is None:
                row[f] = self.best_level(row, f)
        return row

    def worth(self, row, kinds):
        """Pipelines take longer to build than cases to run: a row that needs none of its own is worth more."""
        kind = kind_of(self.names, row)
        cost = 0 if kind in kinds else 12 if "dqk=80" in kind else 6
        return sum(pair in self.open for pair in self.pairs_of(row)) - cost

    def rows(self):
        all_rows, kinds = [], set()
        while self.open:
            pair = next(iter(self.open))
            row = max((self.row_with(pair) for _ in range(TRIES)), key=lambda r: self.worth(r, kinds))
            assert all(compatible(x, y) for _, x, _, y in self.pairs_of(row))
            for held in self.pairs_of(row):
                self.open.pop(held, None)
            all_rows.append(row)
            kinds.add(kind_of(self.names, row))
        return all_rows


def case_of(row, number, is_backward):
    batch = 3 if number % 8 == 7 else 1 if number % 8 == 3 else 2
    words = [f"b={batch}", f"seed={number + 1}"] + [w for w in row if w and "{" not in w]
    # A single query at the top left sees one key, so that its dS is 0 but for dlse: rounding cannot be held to that.
    if is_backward and "sq=1" in words and "causal align=top-left" in words and "dlse" not in words:
        words.append("dlse")
    shape = dict(word.split("=", 1) for word in " ".join(words).split() if "=" in word)
    h, m, n = int(shape.get("hq", shape.get("h", 1))), int(shape["sq"]), int(shape["skv"])
    per_key = 2 * (int(shape.get("dqk", shape.get("d", 0))) + int(shape.get("dv", shape.get("d", 0))))

    def in_turn(choices):
        return ",".join(str(choices[(number + b) % len(choices)]) for b in range(batch))

    values = {
        "b": batch, "h": h, "m": m, "n": n,
        "short_n": 1 if n == 1 else n - n // 3,  # of a single key there is no short one
        "lengths": "lengths=" + in_turn([n, n // 2 + 1, n - n // 3, 0, n // 3 + 1]),
        "offsets": "offsets=" + in_turn([0, n - m, -3, n // 2, -(m // 2), n - 5]),
        "slopes": "slopes=" + ",".join(str([0.25, 1, -0.0625, 0, 8][(number + i) % 5]) for i in range(h)),
        "sinks": "sinks=" + ",".join(str([2, -1, "-inf", 30, 0][(number + i) % 5]) for i in range(h)),
        "cut": max(per_key * batch * h * m * n // 5, per_key * 32 * 32),  # a fifth, but a few tiles at least
    }
    return " ".join(words + [w.format(**values) for w in row if "{" in w])


def main():
    text = "# Every two features together. Written by pairwise.py: change that.\n"
    for name, features in (("forward", FORWARD), ("backward", BACKWARD)):
        text += f"\n[{name}]\n"
        for number, row in enumerate(Generator(features).rows()):
            text += case_of(row, number, name == "backward") + "\n"
    pathlib.Path(__file__).with_suffix(".txt").write_text(text, encoding="utf-8")


main()
