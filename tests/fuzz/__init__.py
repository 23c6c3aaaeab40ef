"""Random attacks on the library, each of which a seed repeats: `python -m fuzz --help`."""
