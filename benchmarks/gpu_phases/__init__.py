"""The phases of ``benchmarks/gpu.py``."""
