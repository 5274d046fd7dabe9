"""The other ranks of a run, through torch.distributed's store: why one failed, and which no longer answer.

A collective that breaks names neither the rank at fault nor its reason. So the first error of a run is kept under a key
of the store, where a thread of every rank finds it; a rank that does not end by itself soon after is ended. The threads
also show there that their ranks live. Only they use the store: its calls last while the process that serves it is
stopped.
"""

import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from torch.distributed import Store

from lightning_fl.core import errors
from lightning_fl.core.errors import FederatedError, LostPeerError, TrainingError
from lightning_fl.core.wire_format import decode, encode
from lightning_fl.engine.interrupt import end_process

#: Seconds between two looks; without a sign of a rank that show that it is gone: where an exchange broke, and where
#: this rank waits (a rank may hold Python's lock in one long call).
_LOOK, _ROLL_CALL, _LOST = 0.25, 3.0, 300.0
#: Seconds that a rank has to end by itself, and that rank zero keeps the store for the others.
_GRACE = 3.0


def publish(store: Store, kind: str, text: str) -> None:
    """Keep an error, as name of its class and text, for all ranks, unless there is an earlier one."""
    store.compare_set("end", "", encode([kind, text[:4000]]))  # type: ignore[arg-type]  # takes bytes as well


class Peers:
    """What a rank knows of the others.

    Args:
        rank: this one.
        here: name of its machine, number of ranks, and what else all agree on.
        store: of this run.
        timeout: seconds without a sign of a rank after which a waiting rank gives it up, at most 300.
        children: processes of ranks 1, 2, ..., if this rank started them.

    Attributes:
        error: that ended another rank.
        waits: this rank is in an exchange.
        ending: this rank ends by itself.
        signs: last of every rank: time, whether it waits, barriers that it came to, ``here``; empty before the first.
    """

    def __init__(
        self, rank: int, here: Sequence[Any], store: Store, timeout: float, children: Sequence[Any] = ()
    ) -> None:
        self.rank, self._here, self._children = rank, here, children
        self.error: FederatedError | None = None
        self.waits = self._fails = False
        self.ending, self._left, self._wake = threading.Event(), threading.Event(), threading.Event()
        self.signs: list[list[Any]] = [[] if other != rank else [0.0, False, 0, *here] for other in range(here[1])]
        self._store = store.clone()  # with a connection of its own: that of the group waits in it
        self._lost = min(timeout, _LOST)
        self._own: tuple[str, str] | None = None
        self._barriers, self._pause, self._looked = 0, _LOOK, time.monotonic()
        self._clock = 0.0  # seconds in which this rank looked; it may have been stopped itself
        self._seen = [0.0] * len(self.signs)
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    def name(self, *ranks: int) -> str:
        """Ranks and their machines, for messages."""
        return ", ".join(f"rank {rank}" + (f" ({sign[3]})" if (sign := self.signs[rank]) else "") for rank in ranks)

    def check(self) -> None:
        """Raise the error of another rank, if there is one."""
        if self.error is not None:
            self.ending.set()
            raise self.error

    def come(self) -> None:
        """Come to the next barrier."""
        self._barriers, self._pause, self.waits = self._barriers + 1, 0.01, True
        self._wake.set()

    def absent(self) -> list[int]:
        """Return the ranks that have not come to the barrier.

        Raises:
            FederatedError: a rank failed or is gone.
        """
        self.check()
        if time.monotonic() - self._looked > self._lost:
            raise self._gone(0)  # it serves the store, which does not answer
        ranks = [rank for rank, sign in enumerate(self.signs) if not sign or sign[2] < self._barriers]
        self.waits = bool(ranks)
        return ranks

    def tell(self, error: BaseException) -> None:
        """Publish the error that ends this rank."""
        text = str(error) if isinstance(error, FederatedError) else f"{type(error).__name__}: {error}".rstrip(": ")
        text = "interrupted." if isinstance(error, KeyboardInterrupt) else text
        self._own = self._own or (type(error).__name__, f"{self.name(self.rank)}: {text}")
        self.ending.set()
        self._wake.set()

    def leave(self) -> None:
        """End this rank's part; rank zero waits a little for ranks that still look for an error in its store."""
        raised = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # that ends the interpreter
        if raised is not None:
            self.tell(raised)
        for event in (self.ending, self._left, self._wake):
            event.set()
        self._thread.join(_GRACE + 1)

    def reason(self, symptom: BaseException, timed_out: bool) -> FederatedError:
        """Find why an exchange broke, from its error on this rank and whether it lasted as long as one may."""
        self.ending.set()
        begin, deadline = self._clock, time.monotonic() + 2 * _ROLL_CALL
        while self.error is None and self._clock <= begin + _ROLL_CALL and time.monotonic() < deadline:
            time.sleep(_LOOK / 10)
        if self.error is not None:
            return self.error
        silent = [rank for rank, seen in enumerate(self._seen) if self._clock - seen > _ROLL_CALL / 2]
        if self._clock == begin:  # the store, which rank zero serves, does not answer
            silent = [0]
        busy = [rank for rank, sign in enumerate(self.signs) if rank not in (self.rank, *silent) and not sign[1]]
        if timed_out:
            text = f"{self.name(*silent)} does not answer: stopped, or without a network. " if silent else ""
            if busy or not silent:
                who = f"{self.name(*busy)}, still at work," if busy else "another rank"
                text += f"{who} did not come in the time that trainer.timeout allows: raise it for longer turns."
            found = TrainingError(text.rstrip())
        elif silent:
            found = self._gone(*silent)
        else:
            found = TrainingError(f"the connection to another rank broke: {str(symptom).partition(chr(10))[0]}")
        self._own = type(found).__name__, str(found)
        return found

    def _gone(self, *ranks: int) -> LostPeerError:
        return LostPeerError(f"{self.name(*ranks)} is gone: its process ended, or is stopped, without a word.")

    def _watch(self) -> None:
        store = self._store
        try:
            while not self._look() and not self._left.is_set():
                self._wake.wait(self._pause)
                self._wake.clear()
                self._pause = min(2 * self._pause, _LOOK)
            store.add("done", 1)
        except RuntimeError:  # the store has ended, and with it the process that serves it
            self.error, self._fails = self._gone(0), True
        if self._fails and not self.ending.wait(_GRACE) and not hasattr(sys, "ps1"):
            end_process(2, f"error: {self.error}")  # in a notebook, the next exchange raises it
        self._left.wait()
        if self.rank == 0:
            deadline = time.monotonic() + _GRACE
            with suppress(RuntimeError):  # a launcher that served the store is gone
                publish(store, "", f"{self.name(0)} has ended while this rank continues: start all alike.")
                while store.add("done", 0) < len(self.signs) and time.monotonic() < deadline:
                    time.sleep(0.01)

    def _look(self) -> bool:
        """Show that this rank lives, publish its error, and read the others' signs; returns whether one failed."""
        store = self._store
        sign = encode([time.monotonic(), self.waits, self._barriers, *self._here])
        store.set(f"sign/{self.rank}", sign)  # type: ignore[arg-type]  # takes bytes as well
        if self._own is not None:
            publish(store, *self._own)
        for rank, process in enumerate(self._children, 1):
            if process.poll():
                publish(store, "LostPeerError", str(self._gone(rank)))
        ranks = [rank for rank, known in enumerate(self.signs) if known or store.check([f"sign/{rank}"])]
        found = store.multi_get([f"sign/{rank}" for rank in ranks])
        now = time.monotonic()
        self._clock += min(now - self._looked, 4 * _LOOK)
        self._looked = now
        for rank, new in zip(ranks, map(decode, found), strict=True):
            self._seen[rank] = self._seen[rank] if new == self.signs[rank] else self._clock
            self.signs[rank] = new
            if self.waits and self._clock - self._seen[rank] > self._lost:
                publish(store, "LostPeerError", str(self._gone(rank)))
        if store.check(["end"]):
            kind, text = map(str, decode(store.get("end")))
            self._fails, known = bool(kind), getattr(errors, kind, None)
            federated = isinstance(known, type) and issubclass(known, FederatedError)
            self.error = (known if known and federated else TrainingError)(text)
        return self.error is not None
