"""End-to-end benchmarks: throughput, latency, step times and memory of whole translations."""
