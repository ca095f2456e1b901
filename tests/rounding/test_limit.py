"""A limit says of what it is made."""

from __future__ import annotations

import math

from tensorprobe.rounding.limit import Limit, Term


def test_a_limit_is_the_sum_of_its_terms_and_names_the_largest_first() -> None:
    limit = Limit((Term(0.25, "small"), Term(1.0, "large"), Term(0.0, "none"))).times(2)
    assert limit.total == 2.5
    assert limit.main_term.reason == "large"
    lines = limit.explain().splitlines()
    assert lines[0] == "at most 2.5"
    assert [line.split(": ")[1] for line in lines[1:]] == [
        "large (2 times 1)",
        "small (2 times 0.25)",
    ]


def test_slack_multiplies_and_further_terms_have_their_own() -> None:
    limit = Limit((Term(1.0, "first", 3.0),)).times(2).plus(Term(1.0, "second"))
    assert [term.slack for term in limit.terms] == [6.0, 1.0]
    assert limit.total == 7.0


def test_a_limit_may_be_nothing_or_anything_and_no_more_than_something() -> None:
    assert Limit.nothing("equal").total == 0
    assert "equal" in Limit.nothing("equal").explain()
    assert Limit.anything("unlike").total == math.inf
    capped = Limit((Term(3.0, "long sum"),)).at_most(1.0, "no kernel is further off")
    assert (capped.total, capped.main_term.reason) == (1.0, "no kernel is further off")
    assert capped.at_most(2.0, "never").main_term.reason == "no kernel is further off"
