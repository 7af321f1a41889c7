"""What a person may ask of a tuner while it works: pause, go on, one probe, hold here, stop, another
objective or bound.
"""

from __future__ import annotations

from ..errors import UsageError
from ..records import Setting
from ..search.objective import Objective
from .hold import Holding
from .options import check_objective, check_slowdown, objective_words


class Commands(Holding):
    """The part of a `Tuner` that takes commands of a person: pause, pin, stop."""

    def _leave_probe(self) -> None:
        """A probe that is not over is worth nothing; the same one is wanted again. What it took is on the
        account.
        """
        if self._probe is not None and self.state in ("search", "watch"):
            self._cut(self.clock(), self._probe_kind)
        self._probe = None

    def pause(self) -> None:
        """Try nothing more for now. The best measured setting so far is held, or what was found."""
        with self._lock:
            self._must_go_on("pause")
            self.paused = True
            if self.state in ("search", "hold", "watch"):
                self._leave_probe()
                self._cut(self.clock(), "probe" if self.state == "search" else "held")
                self._put(
                    self._choice.setting if self._choice is not None and self._choice.measured else Setting()
                )
            self._note("paused")

    def resume(self) -> None:
        """Go on after `pause` or `hold_here`."""
        with self._lock:
            self._must_go_on("resume")
            self.paused, self._once = False, False
            if self._pinned is not None and self._belief is not None:
                self._pinned, self.state = None, "search"
            self._note("resumed")

    def step_once(self) -> None:
        """Make one probe, and pause again."""
        with self._lock:
            self._must_go_on("probe")
            if self.state in ("hold", "watch"):
                self._leave_probe()
                self.state = "search"
            self._pinned, self.paused, self._once = None, False, True

    def hold_here(self) -> None:
        """Search no further, and hold the best measured setting so far.

        Raises:
            UsageError: nothing was measured yet.
        """
        with self._lock:
            self._must_go_on("hold a setting")
            if self._belief is None:
                raise UsageError("there is nothing to hold yet: the default setting is still being measured")
            if self.state == "re-tune":
                raise UsageError(
                    "there is nothing to hold now: the job has changed, and what was best was that for "
                    "another one"
                )
            self._leave_probe()
            best = self._choice
            self._pinned = (
                best.setting if best is not None and best.measured else self._belief.space.reference
            )
            self.paused, self.state = False, "hold"
            self._note(f"the search was ended by hand at {self._at(self._pinned)}")

    def stop(self) -> None:
        """End tuning and put the GPU back, while the job goes on."""
        with self._lock:
            if not self.ended:
                self._note("stopped by hand")
                self.end()

    def change(
        self, *, objective: str | Objective | None = None, max_slowdown: float | str | None = "same"
    ) -> None:
        """Another objective or bound; everything measured so far counts for it.

        Args:
            objective: None leaves it.
            max_slowdown: "same" leaves it, None is no bound.

        Raises:
            UsageError: one that makes no sense.
        """
        with self._lock:
            self._must_go_on("change what it looks for")
            new_objective = check_objective(objective) if objective is not None else self.objective
            new_bound = self.max_slowdown if isinstance(max_slowdown, str) else check_slowdown(max_slowdown)
            if (new_objective, new_bound) == (self.objective, self.max_slowdown):
                return
            self.objective, self.max_slowdown = new_objective, new_bound
            bound = "no bound" if new_bound is None else f"at most {100 * new_bound:g} % slower"
            self._note(f"now {objective_words(new_objective)}, {bound}")
            if self._belief is None:
                return
            self._leave_probe()
            self._belief = self._beliefs[-1] = self._belief.again(new_objective, new_bound)
            self._choose()
            if self.state in ("hold", "watch") and self._pinned is None:
                self.state = "search"

    def _must_go_on(self, what: str) -> None:
        if self.ended:
            raise UsageError(f"this tuning has ended ({self.words}); it cannot {what} any more")
