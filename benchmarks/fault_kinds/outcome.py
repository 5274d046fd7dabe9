"""What came of a trial."""

from dataclasses import dataclass, field

__all__ = ["BAD", "GOOD", "POOR", "SKIPPED", "Outcome"]

#: One clear error of at most three lines before training, or good input that works; a fault without a loss.
GOOD = "good"
#: A traceback, a message that names nothing, late, or silence in a light matter.
POOR = "poor"
#: Exit code 0 and wrong, a hang, something executed, overwritten or lost.
BAD = "bad"
#: Not possible on this machine; the reason is said.
SKIPPED = "skipped"


@dataclass
class Outcome:
    """A trial's verdict, what was done, and what was found.

    ``--only KIND:SEED`` does the same again.
    """

    kind: str
    seed: int
    verdict: str
    case: str = ""
    problem: str = ""
    notes: dict[str, object] = field(default_factory=dict)

    @property
    def survived(self) -> bool:
        """Nothing was wrong with it."""
        return self.verdict == GOOD

    def line(self) -> str:
        """One line about it."""
        return f"{self.kind}:{self.seed} {self.verdict.upper()} {self.case}: {' '.join(self.problem.split())}"[:600]
