"""Automata over tokens: which outputs are valid, and what their tokens weigh.

`Automaton` is data: states, and edges in flat arrays. The modules of this package build automata of patterns,
phrases, sequences and language models. `pybeam.processors` makes a search keep to one.
"""

from pybeam.automata.automaton import Automaton as Automaton
