"""Catalogues: all outputs that a search may give, as a tree in flat arrays."""
