"""What trainers whose interface takes one row of tokens for each trajectory can be given, and what is refused."""

from __future__ import annotations

from typing import List

from ..samples import Group, Segment, Trajectory


class SeveralRows(ValueError):
    """A trajectory of several rows, for a trainer whose interface takes one: the others would be lost."""

    def __init__(self, trajectory: Trajectory, rows: int, trainer: str) -> None:
        super().__init__(
            f"trajectory {trajectory.traj_id} has {rows} rows, and {trainer} takes one for each trajectory; rows begin anew where the history "
            'of a conversation was rewritten or the agent opened another one: use history = "append" and a harness with one '
            "conversation, or a trainer that leases groups"
        )


class ImagesLost(ValueError):
    """A row with images, for a trainer whose interface takes none: it would train on tokens that stand for them."""

    def __init__(self, trajectory: Trajectory, images: int, trainer: str) -> None:
        super().__init__(f"a row of trajectory {trajectory.traj_id} has {images} images, which {trainer} would lose; its tokens mean nothing alone")


class NoReward(ValueError):
    """A trajectory without a reward, which is not 0: its sample was removed, or nothing could score it."""

    def __init__(self, trajectory: Trajectory, trainer: str) -> None:
        why = trajectory.removed or trajectory.stop_reason
        super().__init__(f"trajectory {trajectory.traj_id} has no reward ({why}), and {trainer} has no word for that; it is not a reward of 0")


def only_row(trajectory: Trajectory, trainer: str) -> Segment:
    """The one row of a trajectory that trains something. Raises `SeveralRows`, `ImagesLost`."""
    rows = [segment for segment in trajectory.segments if segment.prompt_len < len(segment)]
    if len(rows) != 1:
        raise SeveralRows(trajectory, len(rows), trainer)
    if rows[0].images:
        raise ImagesLost(trajectory, len(rows[0].images), trainer)
    return rows[0]


def scored(group: Group, count: int, trainer: str) -> List[Trajectory]:
    """The trajectories of a group, each with a reward, as many as were asked for. Raises `NoReward`, `ValueError`."""
    for trajectory in group.trajectories:
        if trajectory.reward is None:
            raise NoReward(trajectory, trainer)
    if len(group.trajectories) < count:
        raise ValueError(
            f"group {group.group_id} is {group.status}: {len(group.trajectories)} of {count} rollouts have a reward, and {trainer} takes no "
            "fewer; set groups.min_size to groups.size, so that such groups fail"
        )
    return group.trajectories[:count]
