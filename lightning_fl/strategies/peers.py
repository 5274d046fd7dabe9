"""The other ranks of a run beside their collectives: who they are, and what became of one that failed or is gone.

A collective that breaks says neither whose fault it was nor why. So every rank holds a connection to rank zero: an
error goes over it before its rank leaves, and the end of a process ends its connection. Rank zero tells all others.
Messages are those of :mod:`lightning_fl.core.wire_format`, each after its length in four bytes.
"""

import contextlib
import ctypes
import os
import selectors
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lightning_fl.core import errors
from lightning_fl.core.errors import FederatedError, LostPeerError, TrainingError
from lightning_fl.core.wire_format import MessageError, decode, encode

__all__ = ["Channel", "Peers", "text_of"]

#: Bytes of a message between ranks on these connections, which are lines of text.
_MOST_BYTES = 1 << 16
_MOST_CHARACTERS = 4000
#: Seconds: what a broken collective waits for the reason to arrive.
_PATIENCE = 5.0
#: Seconds that a rank at work has to come to a collective, where it finds the error itself.
_GRACE = 2.0


def text_of(error: BaseException) -> str:
    """What ends a rank, as the others say it."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted."
    return str(error) if isinstance(error, FederatedError) else f"{type(error).__name__}: {error}".rstrip(": ")


class Channel:
    """A connection over which whole messages go.

    Args:
        connection: a connected TCP socket.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        connection.settimeout(_PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that lost its power says nothing
        for option, seconds in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
            if hasattr(socket, option):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), seconds)
        self._sending = threading.Lock()

    def send(self, value: Any) -> None:
        """Send a message; nothing happens where the other end is gone, which whoever reads there will notice."""
        message = encode(value)
        with self._sending, contextlib.suppress(OSError):
            self.connection.sendall(len(message).to_bytes(4, "big") + message)

    def receive(self) -> Any:
        """The next message.

        Raises:
            OSError: the connection has ended.
            MessageError: what came is no message.
        """
        length = int.from_bytes(self._exactly(4), "big")
        if length > _MOST_BYTES:
            raise MessageError(f"it announces {length} bytes where {_MOST_BYTES} are the most.")
        return decode(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self.connection.recv(count - len(data))
            if not chunk:
                raise ConnectionResetError("the other end is closed")
            data += chunk
        return data

    def close(self) -> None:
        """End the connection."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)
        self.connection.close()


class Peers:
    """What a rank knows of the others.

    Args:
        rank: this one.
        hosts: the name of every rank's machine.
        channels: rank -> the connection to it: to all others on rank zero, to rank zero on all others.
    """

    def __init__(self, rank: int, hosts: Sequence[str], channels: Mapping[int, Channel]) -> None:
        self.rank = rank
        self.hosts = list(hosts)
        self._channels = dict(channels)
        self._open = set(channels)
        self._left: list[int] = []
        self._error: FederatedError | None = None
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._at_work: int | None = None
        self._answers: dict[int, bool] = {}
        #: This rank is in what all do together.
        self.waits = False
        #: Ends what this rank waits for of GPUs: no exception reaches a thread that waits for one.
        self.abort: Callable[[], None] | None = None
        _ALL.add(self)
        threading.Thread(target=self._listen, name="peers", daemon=True).start()

    @property
    def address(self) -> str:
        """This machine's, by which others and it reach each other."""
        channel = next(iter(self._channels.values()))
        return str(channel.connection.getsockname()[0]).removeprefix("::ffff:")

    def name(self, rank: int) -> str:
        """A rank and its machine, as errors name it."""
        return f"rank {rank} ({self.hosts[rank]})"

    @property
    def error(self) -> FederatedError | None:
        """What ended another rank, once it is known here."""
        return self._error

    def reason(self, symptom: BaseException) -> FederatedError:
        """Why a collective broke.

        Args:
            symptom: what it raised here.
        """
        first = (str(symptom).splitlines() or [type(symptom).__name__])[0]
        timed_out = "imed out" in first or "timeout" in first.lower()
        if timed_out and self._error is None and (late := self._late()):
            return TrainingError(late)
        with self._changed:
            for patience, enough in ((1.0, False), (_PATIENCE, True)):  # who has left may not be who failed
                self._changed.wait_for(partial(self._knows, enough), patience)
                if self._error is not None:
                    return self._error
            if self._left:
                return LostPeerError(f"{self.name(self._left[0])} has ended, and this rank goes on: start all alike.")
        if timed_out:
            return TrainingError(
                "another rank did not come to an exchange in the time that trainer.timeout allows: raise it if turns or"
                " evaluations take longer, or look what keeps that rank."
            )
        return TrainingError(f"the connection to another rank broke: {first}")

    def _late(self) -> str:
        """Who, of those that this rank is connected to, is still at work, or does not answer at all, in sentences."""
        with self._changed:
            self._answers.clear()
        asked = sorted(self._open)
        self._send_all(["ask"])
        with self._changed:
            self._changed.wait_for(lambda: self._answers.keys() >= set(asked) or self._error is not None, _GRACE)
            answers = dict(self._answers)
        silent = [self.name(rank) for rank in asked if rank not in answers]
        busy = [self.name(rank) for rank in asked if not answers.get(rank, True)]
        said = []
        if silent:
            said.append(
                f"{', '.join(silent)} did not come to an exchange in the time that trainer.timeout allows, and does not"
                " answer: its process is stopped or hangs, or its machine does."
            )
        if busy:
            said.append(
                f"{', '.join(busy)} was still at work and did not come to an exchange in the time that trainer.timeout"
                " allows: raise it if turns or evaluations take longer, or look what keeps that rank."
            )
        return " ".join(said)

    def _knows(self, of_leaving: bool) -> bool:
        return self._error is not None or (of_leaving and bool(self._left))

    def begin_work(self) -> None:
        """From now on this thread computes, for hours maybe: an error of another rank is raised in it meanwhile."""
        self._at_work = threading.get_ident()

    def end_work(self) -> None:
        """From now on it is not."""
        self._at_work = None

    def tell(self, error: BaseException) -> None:
        """Tell all others what ends this rank, unless one of them told it."""
        if str(error) == str(self._error) or self._process != os.getpid():
            return
        text = f"{self.name(self.rank)}: {text_of(error)}"
        self._send_all(["error", type(error).__name__, text[:_MOST_CHARACTERS]])

    def leave(self) -> None:
        """Say that this rank's part is done, and end the connections."""
        self.end_work()
        if self._process != os.getpid() or not self._open:
            return
        raised = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # what ends the interpreter
        if raised is not None and self._error is None:
            self.tell(raised)
        self._send_all(["bye"])
        with self._changed:
            self._open.clear()
        for channel in self._channels.values():
            channel.close()

    def _send_all(self, message: list[Any], but: int | None = None) -> None:
        for rank in sorted(self._open - {but}):
            self._channels[rank].send(message)

    # -- the thread that listens -----------------------------------------------------------------------------------

    def _listen(self) -> None:
        with selectors.DefaultSelector() as selector:
            for rank, channel in self._channels.items():
                selector.register(channel.connection, selectors.EVENT_READ, rank)
            while self._open:
                try:
                    events = selector.select()
                except OSError:
                    return
                for key, _ in events:
                    if key.data in self._open and not self._hear(key.data):
                        selector.unregister(key.fileobj)
                    elif not self._open:
                        return

    def _hear(self, rank: int) -> bool:
        """Read what a rank says; whether it may say more."""
        try:
            message = self._channels[rank].receive()
            kind, *rest = message
            if kind == "error":
                name, text = map(str, rest)
                self._learn(name, text[:_MOST_CHARACTERS], rank)
                return True
            if kind == "ask":
                self._channels[rank].send(["here", self.waits])
                return True
            if kind == "here":
                with self._changed:
                    self._answers[rank] = bool(rest[0])
                    self._changed.notify_all()
                return True
        except OSError:
            kind = "gone"
        except (MessageError, TypeError, ValueError) as error:
            self._learn("TrainingError", f"{self.name(rank)} sent something that is no message: {error}", rank)
            kind = "bye"
        with self._changed:
            if rank not in self._open:  # this rank itself has left
                return False
            self._open.discard(rank)
            if kind == "bye":
                self._left.append(rank)
                self._changed.notify_all()
        if kind != "bye":
            self._learn("LostPeerError", f"{self.name(rank)} is gone: its process ended without a word.", rank)
        return False

    def _learn(self, kind: str, text: str, source: int) -> None:
        """Take up the first error of another rank, and pass it on."""
        if self._error is not None:
            return
        if self.rank == 0:  # before this rank itself may leave for it
            self._send_all(["error", kind, text], but=source)
        found = getattr(errors, kind, None) if kind in errors.__all__ else None
        with self._changed:
            self._error = (found or TrainingError)(text)
            self._changed.notify_all()
        threading.Thread(target=self._interrupt, name="peers' error", daemon=True).start()

    def _interrupt(self) -> None:
        """Raise the error in the thread at work, until it ends: a client's turn may take it for an error of its own."""
        kind, text = type(self._error), str(self._error)

        def made(error: FederatedError) -> None:
            Exception.__init__(error, text)

        raised = type(kind.__name__, (kind,), {"__init__": made})  # a thread can be given a class only
        abort, self.abort = self.abort, None
        while True:
            time.sleep(_GRACE)
            thread = self._at_work
            if thread is None or self._process != os.getpid():
                return
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(raised))
            if abort is not None:
                abort()
                abort = None


_ALL: "weakref.WeakSet[Peers]" = weakref.WeakSet()


def _close_in_fork() -> None:
    """A forked process, a loader's worker say, must not keep the connections of the rank open when that ends."""
    for peers in _ALL:
        for channel in peers._channels.values():
            channel.connection.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_fork)
