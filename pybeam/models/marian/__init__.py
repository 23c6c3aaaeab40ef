"""Folders of Marian, as its training writes them."""
