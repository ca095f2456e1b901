"""Align two sequences: as many common elements as possible, in a common order."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["align_keys"]

# Where two runs have little in common the exact answer would take the square of their length.
_MOST_EDITS = 1_000


def align_keys(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of equal keys: as many as possible, and no two pairs cross.

    >>> align_keys(["relu"], ["abs", "relu"])
    [(0, 1)]
    """
    start = 0
    while start < min(len(ours), len(theirs)) and ours[start] == theirs[start]:
        start += 1
    end = 0
    longest = min(len(ours), len(theirs)) - start
    while end < longest and ours[-1 - end] == theirs[-1 - end]:
        end += 1
    pairs = [(index, index) for index in range(start)]
    middle = _common(ours[start : len(ours) - end], theirs[start : len(theirs) - end])
    pairs += [(start + a, start + b) for a, b in middle]
    pairs += [(len(ours) - 1 - i, len(theirs) - 1 - i) for i in reversed(range(end))]
    return pairs


def _common(ours: Sequence[str], theirs: Sequence[str]) -> list[tuple[int, int]]:
    """Find a longest common subsequence by the fewest insertions and deletions (Myers)."""
    shared = set(ours) & set(theirs)
    # What the other run does not have cannot be in it, and would only cost edits.
    rows = [index for index, key in enumerate(ours) if key in shared]
    columns = [index for index, key in enumerate(theirs) if key in shared]
    a, b = [ours[index] for index in rows], [theirs[index] for index in columns]
    found = _fewest_edits(a, b)
    if found is None:
        found = _in_order(a, b)
    return [(rows[x], columns[y]) for x, y in found]


def _fewest_edits(a: list[str], b: list[str]) -> list[tuple[int, int]] | None:
    reach = {1: 0}
    history: list[dict[int, int]] = []
    for edits in range(min(len(a) + len(b), _MOST_EDITS) + 1):
        history.append(reach.copy())
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (
                diagonal != edits and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
            )
            x = reach.get(diagonal + 1, 0) if down else reach[diagonal - 1] + 1
            y = x - diagonal
            while x < len(a) and y < len(b) and a[x] == b[y]:
                x, y = x + 1, y + 1
            reach[diagonal] = x
            if x >= len(a) and y >= len(b):
                return _walk_back(history, len(a), len(b))
    return None


def _walk_back(history: list[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    pairs = []
    for edits in range(len(history) - 1, -1, -1):
        reach = history[edits]
        diagonal = x - y
        down = diagonal == -edits or (
            diagonal != edits and reach.get(diagonal - 1, -1) < reach.get(diagonal + 1, -1)
        )
        before = diagonal + 1 if down else diagonal - 1
        start_x = reach.get(before, 0) if edits else 0
        start_y = start_x - before if edits else 0
        while x > start_x and y > start_y and x and y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        if edits:
            x, y = start_x, start_y
    return pairs[::-1]


def _in_order(a: list[str], b: list[str]) -> list[tuple[int, int]]:
    """Take the next call of the same name each time: quick, and good where little is common."""
    places: dict[str, list[int]] = {}
    for index in range(len(b) - 1, -1, -1):
        places.setdefault(b[index], []).append(index)
    pairs, last = [], -1
    for index, key in enumerate(a):
        waiting = places[key]
        while waiting and waiting[-1] <= last:
            waiting.pop()
        if waiting:
            last = waiting.pop()
            pairs.append((index, last))
    return pairs
