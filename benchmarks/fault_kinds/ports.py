"""A port that children can listen at."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["reserved_port"]


@contextmanager
def reserved_port() -> Iterator[str]:
    """A port that nobody else is given: bound, not listened at, and shared by ``SO_REUSEADDR``."""
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        yield str(reserved.getsockname()[1])
