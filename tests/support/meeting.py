"""A run and its test meet in the middle of a round, so that the test knows what the run is doing."""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from select import select

from lightning_fl import FederatedTrainer
from lightning_fl.callbacks import Callback
from lightning_fl.engine import interrupt

#: The variable with the port at which a test waits; without it nobody does.
PORT = "TEST_MEETING_PORT"


@contextmanager
def meeting() -> Iterator[tuple[socket.socket, dict[str, str]]]:
    """A socket to which runs with a :class:`Meeting` connect, and the environment that they need for it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, {PORT: str(server.getsockname()[1])}


class Meeting(Callback):
    """Connects to the test in the middle of a round, and waits until the test closes the connection or a signal comes.

    Args:
        round_number: of the round, counted from 1.
    """

    def __init__(self, round_number: int) -> None:
        self.round_number = round_number

    def on_client_end(self, trainer: FederatedTrainer, client: int) -> None:
        if trainer.current_round + 1 != self.round_number or PORT not in os.environ:
            return
        address = "127.0.0.1", int(os.environ.pop(PORT))  # once
        with socket.create_connection(address) as test:
            while not select([test], [], [], 0.01)[0] and not any(guard.signal_number for guard in interrupt._GUARDS):
                pass
