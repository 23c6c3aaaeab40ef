"""Helpers that several tests share: models, oracles, cases, and ways to run them."""
