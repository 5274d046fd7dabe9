"""One client's turn: local steps and evaluation on the process's one module."""
