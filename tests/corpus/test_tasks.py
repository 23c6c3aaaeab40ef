"""Lines become requests."""

from pybeam.corpus.tasks import cut


def test_a_cut_source_keeps_what_ends_every_source():
    assert cut([9, 5, 6, 7, 2], frame=[9, 2], limit=3) == [9, 5, 2]
    assert cut([5, 6, 7, 2, 9], frame=[2, 9], limit=4) == [5, 6, 2, 9]
