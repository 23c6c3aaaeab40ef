"""Commands beside the benchmarks: data, wider models, and clusters that are simulated."""
