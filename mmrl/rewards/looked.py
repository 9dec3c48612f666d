"""Did the policy look closely at the place that matters?"""

from __future__ import annotations

from mmrl.registry import register
from mmrl.types import Trajectory


@register("reward", "looked")
def looked(trajectory: Trajectory, *, area: float = 0.25) -> float | None:
    """1 when some picture that a tool made shows the whole box `target` (xyxy in pixels of the first picture, in the
    sample's meta) and at most the share `area` of that picture, else 0. None for a sample without a target."""
    sample = trajectory.prompt.sample
    target = sample.meta.get("target")
    if not target or not sample.media:
        return None
    whole = sample.media[0]
    given = {m.id for m in sample.media}
    return float(
        any(
            region[0] <= target[0]
            and region[1] <= target[1]
            and region[2] >= target[2]
            and region[3] >= target[3]
            and (region[2] - region[0]) * (region[3] - region[1]) <= area * whole.width * whole.height
            for ref in trajectory.media.values()
            if ref.id not in given and ref.parent == whole.id and (region := ref.region)
        )
    )
