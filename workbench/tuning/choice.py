"""Which setting is the best by what is known, and whether it pays to leave the held one for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..records import Setting
from ..search.clocks.base import Choice
from .params import TunerParams
from .posterior import SettingPosterior
from .results import Saved


def best(
    belief: SettingPosterior, bound: float | None, *, slack: float, common: float, params: TunerParams
) -> Choice:
    """The best by what is known, farther inside the bound where that is unsure or the job is behind.

    Args:
        slack: Share of time that the job has saved so far, `slack(...)`.
        common: Relative error of times that all settings share.
    """
    if bound is None:
        return belief.choice(None)
    reference = belief.space.reference
    allowed = min(bound + slack - common, 1.0)
    choice = belief.choice(max(0.0, allowed))
    if choice.setting != reference:
        allowed -= params.caution * choice.time_sd * choice.time_ratio
        choice = belief.choice(max(0.0, allowed))
    # What the job has in hand is for errors; a setting that is believed to be beyond the bound is not held.
    for _ in range(2):
        over = choice.time_ratio - 1.0 - max(params.aim * bound - common, 0.0)
        if over <= 0.0 or choice.setting == reference:
            break
        allowed -= over
        choice = belief.choice(max(0.0, allowed))
    return choice


def slack(saved: Saved | None, bound: float | None, params: TunerParams) -> float:
    """Share by which an iteration may exceed the bound without the whole job doing so; below 0 it owes."""
    if bound is None or saved is None:
        return 0.0
    would_s = saved.time_s / (1.0 + saved.slowdown)
    left_s = (params.aim * bound - saved.slowdown) * would_s
    if left_s < 0:
        return left_s / max(params.make_up_s, 0.25 * would_s)
    if left_s > 0:  # what is in hand is known no better than the baseline
        left_s = max(0.0, left_s - 0.5 * saved.slowdown_uncertainty * would_s)
    return min(left_s / max(params.slack_horizon_s, would_s), params.most_slack)


def keeps(belief: SettingPosterior, setting: Setting, bound: float | None, slack: float) -> float:
    """Probability that a setting keeps what is allowed for, with what the job has in hand, 0..1.

    Args:
        belief: What is known of settings.
        setting: The one in question.
        bound: Slowdown limit; None for none.
        slack: Share of time that the job has saved so far.
    """
    if bound is None:
        return 1.0
    ratio, sd, _ = belief.ratios(setting)
    apart = math.log(max(1.0 + bound + slack, 1.0)) - math.log(ratio)
    return 0.5 * math.erfc(-apart / max(sd, 1e-6) / math.sqrt(2.0))


@dataclass
class Steering:
    """When it is thought about whether to leave the held setting for a better one.

    Attributes:
        next_s: Not before.
        calm_s: No change before, unless the bound asks for it.
        more: How often the search was taken up again.
    """

    next_s: float = -math.inf
    calm_s: float = -math.inf
    more: int = 0

    def decide(
        self, now_s: float, held: Setting, new: Setting, belief: SettingPosterior,
        baseline: Sequence[float], keeps: float, params: TunerParams,
    ) -> str:
        """Why to leave the held setting: "bound", "better", "far" (better, and to be probed first), or empty.

        Args:
            baseline: Time (s) and energy (J) of an iteration at the default setting.
            keeps: `keeps(...)` of the held setting.
        """
        gain = belief.cost(held, baseline) - belief.cost(new, baseline)
        faster = belief.ratios(new)[0] < belief.ratios(held)[0]
        if faster and keeps < params.doubted:
            self.calm_s = now_s + params.calm_s
            return "bound"
        if gain <= params.better or now_s < self.calm_s:
            return ""
        if belief.near(new, params.step):
            return "better"
        if self.more >= params.most_more:
            return ""
        self.calm_s, self.more = now_s + params.calm_s, self.more + 1
        return "far"
