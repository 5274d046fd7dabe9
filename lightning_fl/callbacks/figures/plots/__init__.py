"""The pictures of a run as functions: numbers in, a figure out."""
