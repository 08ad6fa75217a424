"""Code of our own for CPUs, compiled on the machine it runs on: networks, their optimiser and random words.

`calls` is what the rest of ringfence uses; `build` makes the library behind it.
"""
