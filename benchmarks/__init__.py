"""Benchmarks: each prints one table and writes one JSON file; nothing here is a test."""
