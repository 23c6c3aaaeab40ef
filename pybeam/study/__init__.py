"""How good a search is: the most probable output of all, beside what searches find."""
