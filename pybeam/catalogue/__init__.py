"""Catalogues: all outputs that a search may give, as a tree in flat arrays."""

from pybeam.catalogue.catalogue import Catalogue
from pybeam.catalogue.items import allowed_items

__all__ = ["Catalogue", "allowed_items"]
