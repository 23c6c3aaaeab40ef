"""The choices of a group, as they are on the device when it ends."""

from __future__ import annotations

from pybeam.engine.groups import choices
from support.random_searches import ALGORITHMS, Searches


def test_choices_have_the_size_that_was_asked_for():
    searches = Searches(ALGORITHMS["held"], seed=9)
    searches.open()
    for _ in range(4):
        searches.step()
    slots, tree = searches.live, searches.states[0].tree
    nodes = {slot: int(tree.num_nodes[slot]) for slot in slots}
    for capacity in (most := max(nodes.values()), most + 1, tree.token.shape[1] + 3):
        for state in searches.states:
            found = choices(state, slots, capacity)
            assert found.shape == (len(slots), 1 + 2 * capacity)
            for slot, line in zip(slots, found.tolist(), strict=True):
                num = nodes[slot]
                assert line[:1] == [num]
                assert line[1 : 1 + num] == tree.token[slot, :num].tolist()
                parents = line[1 + capacity : 1 + capacity + num]
                assert parents == tree.parent[slot, :num].tolist()
