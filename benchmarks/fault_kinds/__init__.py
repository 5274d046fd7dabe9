"""The kinds of faults that ``benchmarks/faults.py`` tries, one file each."""
