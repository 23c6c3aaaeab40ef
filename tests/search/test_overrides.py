"""The lengths that a request may ask for: what they count, and what leaves no room."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import pybeam
from pybeam.limits import FREE, PrefixRule, SourceLimit
from pybeam.search.overrides import DefaultPrefix, for_target, overridden
from support.search_models import EOS, random_model

IN_LIMITS = {
    "free": PrefixRule(in_limits=True),
    "scored": PrefixRule(is_scored=True, in_length=True, in_limits=True),
}
LIMITS = [None, 15, 100, SourceLimit(2.0, 3), SourceLimit(0.0, 40)]
REFUSED = "`prefix` must be shorter than the model's 4 positions, but has {} tokens"


def limits_of(algorithm, room=None, source_length=9, **request):
    return overridden(algorithm, pybeam.Request([1], **request), room, source_length)


@pytest.mark.parametrize("max_length", LIMITS)
@pytest.mark.parametrize("min_length", [0, 4, 6, 10])
@pytest.mark.parametrize("rule", IN_LIMITS)
@pytest.mark.parametrize("room", [None, 200])
def test_min_length_counts_the_prefix_whatever_the_limit_is(max_length, min_length, rule, room):
    """The algorithm's own and a request's: as many tokens as remain, never less than none."""
    prefix, remains = [5] * 6, max(min_length - 6, 0)
    given = dict(max_length=max_length, prefix=IN_LIMITS[rule])
    own = limits_of(pybeam.fixed_beam(3, min_length=min_length, **given), room, prefix=prefix)
    asked = limits_of(pybeam.fixed_beam(3, **given), room, prefix=prefix, min_length=min_length)
    assert own.min_length == asked.min_length == remains
    assert own.max_length == asked.max_length
    without = limits_of(pybeam.fixed_beam(3, min_length=min_length, max_length=max_length), room)
    assert without.min_length == min_length


@pytest.mark.parametrize("max_length", [None, 12])
@pytest.mark.parametrize("rule", IN_LIMITS)
def test_outputs_are_as_long_as_the_prefix_lets_them_be(backend, rule, max_length):
    """A model that would end at once: with min_length = 10 and six given tokens four more come."""
    model = random_model(3, 9, eos_bonus=9.0)
    algorithm = pybeam.fixed_beam(2, min_length=10, max_length=max_length, prefix=IN_LIMITS[rule])
    decoder = pybeam.Decoder(model, algorithm, backend=backend)
    requests = [pybeam.Request([1], prefix=[4, 5, 6, 7, 8, 3][:n]) for n in (0, 3, 6)]
    for result in decoder.decode(requests):
        (best,) = result.hypotheses
        assert (len(best.tokens), best.eos_id) == (10, EOS)


@pytest.mark.parametrize("max_length", [None, 3, SourceLimit(1.0)])
@pytest.mark.parametrize("rule", ["none", *IN_LIMITS])
@pytest.mark.parametrize("num", [4, 5, 9])
def test_a_prefix_that_fills_the_model_is_what_is_refused(max_length, rule, num):
    prefix = IN_LIMITS.get(rule, PrefixRule())
    algorithm = pybeam.fixed_beam(2, max_length=max_length, prefix=prefix)
    with pytest.raises(ValueError) as error:
        limits_of(algorithm, 4, prefix=[5] * num)
    assert str(error.value) == REFUSED.format(num)


@pytest.mark.parametrize(
    ("rule", "counted"),
    [
        (PrefixRule(), 0),
        (PrefixRule(in_length=True), 2),
        # its tokens are generated ones
        (PrefixRule(is_scored=True, in_length=True), 0),
    ],
)
def test_a_prefix_that_counts_in_the_length_does_so_in_the_scoring(rule, counted):
    own, asked = pybeam.scoring.power(1.0), pybeam.scoring.gnmt(0.5)
    algorithm = pybeam.fixed_beam(3, max_length=9, scoring=own, prefix=rule)
    assert limits_of(algorithm).scoring == own
    for given, expected in ((None, own), (asked, asked)):
        found = limits_of(algorithm, prefix=[5, 6], scoring=given).scoring
        assert found == dataclasses.replace(expected, offset=expected.offset + counted)


def test_a_prefix_that_nobody_asked_for_has_a_rule_of_its_own():
    class Rule(PrefixRule):
        @property
        def of_default(self):
            return FREE

    algorithm = pybeam.fixed_beam(2, max_length=15, prefix=Rule(in_limits=True))
    for prefix, expected in (([5] * 6, 15 - 6), (DefaultPrefix([5] * 6), 15)):
        assert limits_of(algorithm, prefix=prefix).max_length == expected


def test_a_limit_that_follows_the_source_stays_within_the_model():
    for rule in IN_LIMITS.values():
        algorithm = pybeam.fixed_beam(2, max_length=SourceLimit(2.0), prefix=rule)
        assert limits_of(algorithm, 10, prefix=[5] * 6).max_length == 4
        assert limits_of(algorithm, 100, prefix=[5] * 6).max_length == 18 - 6


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (dict(min_length=-1), ValueError, "`min_length` must be at least 0, but is -1"),
        (dict(min_length="3"), TypeError, "`min_length` must be an int, but is '3'"),
        (dict(max_length=0), ValueError, "`max_length` must be at least 1, but is 0"),
        (dict(max_length=2.5), TypeError, "`max_length` must be an int, but is 2.5"),
        (dict(min_length=300), ValueError, "`min_length` must be less than `max_length` = 256"),
        (dict(max_length=5, prefix=[4] * 5), ValueError, "counts the prefix here and must be more"),
    ],
)
def test_what_makes_no_sense_is_refused(request_, error, message):
    with pytest.raises(error, match=message):
        limits_of(pybeam.fixed_beam(2, prefix=IN_LIMITS["free"]), **request_)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"source_id": 2**64}, ValueError, "`source_id` must be .* but is 18446744073709551616"),
        ({"source_id": "a"}, TypeError, "`source_id` must be an int, but is 'a'"),
        ({"ended_only": torch.zeros(2)}, TypeError, "`ended_only` must be True or False"),
        ({"n_best": torch.zeros(2)}, TypeError, "`n_best` must be an int"),
        ({"processors": torch.zeros(2)}, TypeError, "`Request.processors` must be a list"),
        ({"processors": 3}, TypeError, "`Request.processors` must be a list"),
    ],
)
def test_values_that_cannot_be_compared_are_refused_by_name(changes, error, message):
    decoder = pybeam.Decoder(random_model(3), pybeam.fixed_beam(2, max_length=4))
    bad, good = decoder.decode([pybeam.Request([1], **changes), [1]], on_error="return")
    assert good.error is None
    with pytest.raises(error, match=message):
        raise bad.error


@pytest.mark.parametrize(
    ("own", "asked", "rule", "room", "cut"),
    [
        (15, None, PrefixRule(), None, 15),
        (15, 5, PrefixRule(), None, 5),
        (15, None, IN_LIMITS["free"], None, 15 - 6),
        (15, 9, IN_LIMITS["free"], 100, 9 - 6),
        (SourceLimit(1.0, 1), None, PrefixRule(), None, 10),
        (SourceLimit(1.0, 1), None, IN_LIMITS["free"], None, 10 - 6),
        (None, None, PrefixRule(), 12, 12 - 6),
        (None, None, IN_LIMITS["free"], 1000, 256),
        (15, None, PrefixRule(), 12, 12 - 6),
    ],
)
def test_a_target_has_room_for_one_token_more_unless_it_is_cut_there(own, asked, rule, room, cut):
    algorithm = pybeam.fixed_beam(2, max_length=own, prefix=rule)
    for num in (1, cut - 1, cut, cut + 1):
        if room is not None and num > room - 6:
            continue
        request = pybeam.Request([1], prefix=[5] * 6, max_length=asked, target=[4] * (num - 1))
        found = for_target(algorithm, request, room, source_length=9).max_length
        expected = num if num == cut else num + 1
        assert found == (expected if room is None else min(expected, room - 6))
