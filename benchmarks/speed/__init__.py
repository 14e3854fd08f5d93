"""What the proxy costs in time and memory, measured beside servers that do less; `python -m benchmarks.speed`."""
