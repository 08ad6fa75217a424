"""How fast ringfence is, and how close to the machine's limit. `make bench` measures everything in one run.

Each measurement is a function of plain values that returns a dict of plain values. It runs in a process of its own
(`child.py`), so that threads, memory and caches belong to it alone; `run.py` calls them one after another, prints the
tables and writes `results/benchmarks.json`.
"""
