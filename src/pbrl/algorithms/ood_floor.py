"""How far down an OOD target may go (Eq. 5's max(0, .), for rewards of either sign)."""

from __future__ import annotations

from pbrl.data.training_data import TrainingData


def ood_floor(data: TrainingData, gamma: float) -> tuple[float, str]:
    """The floor for these rewards, and a sentence that says why.

    It is the paper's 0 where rewards are non-negative in the main (at least half of them, and on
    average), else the lowest discounted return they allow, min(0, lowest reward) / (1 - gamma).
    """
    rewards = data.reward_statistics()
    share, floor = rewards.share_not_negative, 0.0
    why = f"{share:.0%} of the rewards are not negative" if share else "all rewards are negative"
    if share < 0.5 or rewards.mean < 0:
        floor = min(0.0, rewards.low) / (1 - gamma)
        only = "only " if share else ""
        why = f"{only}{why}, and a floor of 0 would make unseen actions attractive"
    return floor, f"OOD targets are floored at {floor:.6g} ({why}); set ood_floor."
