"""The other ranks of a run, through torch.distributed's store: why one failed, and which no longer answer.

A collective that breaks names neither the rank at fault nor its reason. So the first error of a run is kept under a key
of the store, where a thread of every rank finds it. A rank that does not end by itself soon after is ended: every round
can be resumed. The same threads count in the store, which tells ranks at work from those that are gone.
"""

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from torch.distributed import Store

from lightning_fl.core import errors
from lightning_fl.core.errors import FederatedError, LostPeerError, TrainingError
from lightning_fl.core.wire_format import decode, encode
from lightning_fl.engine.interrupt import end_process

__all__ = ["END", "Peers", "publish", "text_of"]

#: Key of the first error, as name of its class and text; two empty texts once rank zero has ended well.
END = "end"
_MOST_CHARACTERS = 4000
#: Seconds between two looks; looks without a sign of a rank that show that it is gone: where an exchange broke, and
#: where this rank has waited in one all the time (a rank may hold Python's lock in one long call).
_LOOK_SECONDS = 0.25
_ROLL_CALL = 12
_LOST = 1200
#: Seconds that a rank has to end by itself, and that rank zero keeps the store for the others.
_GRACE_SECONDS = 3.0


def text_of(error: BaseException) -> str:
    """The error that ends a rank, for other ranks."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted."
    return str(error) if isinstance(error, FederatedError) else f"{type(error).__name__}: {error}".rstrip(": ")


def publish(store: Store, kind: str, text: str) -> None:
    """Keep an error for all ranks, unless there is an earlier one."""
    store.compare_set(END, "", encode([kind, text[:_MOST_CHARACTERS]]))  # type: ignore[arg-type]  # takes bytes as well


class Peers:
    """What a rank knows of the others.

    Args:
        rank: this one.
        hosts: machine of every rank.
        store: of this run.
        children: processes of ranks 1, 2, ..., if this rank started them.

    Attributes:
        error: that ended another rank.
        waits: this rank is in an exchange.
        ending: this rank ends by itself.
    """

    def __init__(self, rank: int, hosts: Sequence[str], store: Store, children: Sequence[Any] = ()) -> None:
        self.rank = rank
        self.hosts = list(hosts)
        self.error: FederatedError | None = None
        self.waits = self.ending = False
        self._store = store.clone()  # with a connection of its own: that of the group waits in it
        self._children = children
        self._own: tuple[str, str] | None = None
        self._looks = 0
        self._beats = [b""] * len(hosts)
        self._quiet = [0] * len(hosts)
        self._over = False
        self._wake = threading.Event()
        self._changed = threading.Condition()
        self._look()
        self._thread = threading.Thread(target=self._watch, name="peers", daemon=True)
        self._thread.start()

    def name(self, rank: int) -> str:
        """A rank and its machine, for messages."""
        return f"rank {rank} ({self.hosts[rank]})"

    def check(self) -> None:
        """Raise the error of another rank, if there is one."""
        if self.error is not None:
            self.ending = True
            raise self.error

    def tell(self, error: BaseException) -> None:
        """Publish the error that ends this rank."""
        self.ending = True
        if self._thread.is_alive() and self.error is None:
            with self._changed:
                self._own = self._own or (type(error).__name__, f"{self.name(self.rank)}: {text_of(error)}")
                self._wake.set()
                self._changed.wait_for(lambda: self._own is None, _GRACE_SECONDS)

    def leave(self) -> None:
        """End this rank's part; rank zero waits a little for ranks that still look for an error in its store."""
        raised = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)  # that ends the interpreter
        if raised is not None and self.error is None:
            self.tell(raised)
        self.ending = self._over = True
        self._wake.set()
        self._thread.join(2 * _GRACE_SECONDS)

    def reason(self, symptom: BaseException, timed_out: bool) -> FederatedError:
        """Find why an exchange broke.

        Args:
            symptom: error of the exchange on this rank.
            timed_out: it lasted as long as an exchange may.
        """
        self.ending = True
        found = self._find_reason(symptom, timed_out)
        with self._changed:
            self._own = type(found).__name__, str(found)
        return found

    def _find_reason(self, symptom: BaseException, timed_out: bool) -> FederatedError:
        with self._changed:
            begin = self._looks
            self._changed.wait_for(
                lambda: self.error is not None or self._over or self._looks > begin + _ROLL_CALL,
                2 * _ROLL_CALL * _LOOK_SECONDS,
            )
            if self.error is not None:
                return self.error
            if self._over:
                return LostPeerError(f"{self.name(0)} has ended while this rank continues: start all alike.")
            store_answers = self._looks > begin
            silent = [rank for rank, looks in enumerate(self._quiet) if looks >= _ROLL_CALL] if store_answers else [0]
            busy = [rank for rank, beat in enumerate(self._beats) if rank not in [*silent, self.rank] and not beat[1]]
        gone, at_work = (", ".join(map(self.name, ranks)) for ranks in (silent, busy))
        if not timed_out:
            if gone:
                return LostPeerError(f"{gone} is gone: its process ended without a word.")
            line = (str(symptom).splitlines() or [type(symptom).__name__])[0]
            return TrainingError(f"the connection to another rank broke: {line}")
        late = "did not come to an exchange in the time that trainer.timeout allows"
        lines = [f"{gone} {late}, and does not answer: its process or machine is stopped or hangs."] if gone else []
        if at_work or not gone:
            who = f"{at_work} was still at work and" if at_work else "another rank"
            lines.append(f"{who} {late}: raise it if turns or evaluations take longer, or look what keeps that rank.")
        return TrainingError(" ".join(lines))

    # -- the thread ------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        try:
            while self.error is None and not self._over:
                self._wake.wait(_LOOK_SECONDS)
                self._wake.clear()
                self._look()
            self._store.add("done", 1)
            self._await_end()
            if self.rank == 0:
                publish(self._store, "", "")
                deadline = time.monotonic() + _GRACE_SECONDS
                alive = sum(looks < _ROLL_CALL for looks in self._quiet)
                while self._store.add("done", 0) < alive and time.monotonic() < deadline:
                    time.sleep(0.01)
        except RuntimeError:  # the store has ended, and with it the process that serves it
            if not self._over:
                self._learn("LostPeerError", f"{self.name(0)} is gone: its process ended without a word.")
                self._await_end()

    def _look(self) -> None:
        """Show that this rank lives, publish its error, and read what others have written."""
        store = self._store
        store.set(f"beat/{self.rank}", bytes([self._looks % 256, self.waits]))  # type: ignore[arg-type]
        if self._own is not None:
            publish(store, *self._own)
        for rank, process in enumerate(self._children, 1):
            if process.poll():
                publish(store, "LostPeerError", f"{self.name(rank)} is gone: its process ended without a word.")
        found = store.multi_get([f"beat/{rank}" for rank in range(len(self.hosts))]) if self._looks else self._beats
        with self._changed:
            self._quiet = [(q + 1) * (old == new) for q, old, new in zip(self._quiet, self._beats, found, strict=True)]
            self._beats = found
        longest = max(self._quiet)
        if self.waits and longest >= _LOST:
            lost = self.name(self._quiet.index(longest))
            publish(store, "LostPeerError", f"{lost} is gone: it has not answered for minutes.")
        if store.check([END]):
            self._learn(*map(str, decode(store.get(END))))
        with self._changed:
            self._own = None
            self._looks += 1
            self._changed.notify_all()

    def _learn(self, kind: str, text: str) -> None:
        known = getattr(errors, kind, None)
        found = known if isinstance(known, type) and issubclass(known, FederatedError) else TrainingError
        with self._changed:
            if kind:
                self.error = found(text)
            self._over = not kind
            self._changed.notify_all()

    def _await_end(self) -> None:
        """End this process unless it ends by itself; in a notebook the next exchange raises the error."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while not self._over:
            if not self.ending and time.monotonic() > deadline and not hasattr(sys, "ps1"):
                end_process(2, f"error: {self.error}")
            time.sleep(0.05)
