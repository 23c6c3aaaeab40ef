"""What several tests share: models, oracles, cases, and ways to run what they check."""
