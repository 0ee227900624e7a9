"""Benchmarks: each `bench_*.py` here holds one subject, and `python -m bench` runs them."""
