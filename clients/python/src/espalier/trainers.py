"""Segments of `group/v1` in the forms of trainers, as plain dictionaries and arrays.

Nothing here imports a trainer: the keys are theirs, the values plain Python and NumPy. A row without a sampled token is
left out by `slime` and `verl` where they iterate a group, since it trains nothing.

A row may hold images (`Segment.images`): some of its tokens stand for them and say nothing by themselves. Every function here takes
`images`, what loads one by its digest (`espalier.samples.Images(path)`), and hands them to the trainer; without it, a row with images is
refused (`ImagesIgnored`), so that nobody trains on such tokens unawares. `images=None` says that they are to be ignored.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple

import numpy as np
import numpy.typing as npt

from .samples import Group, Segment, Trajectory

#: Loads an image by its digest: the bytes of a file, or whatever the trainer takes.
Loader = Callable[[str], Any]


class ImagesIgnored(ValueError):
    """A row holds images, and nobody said what becomes of them."""


def _refuse(digest: str) -> Any:
    """Stands where nobody said."""
    raise ImagesIgnored(f"nobody said what becomes of image {digest}")


#: Trajectory status -> slime's `Sample.Status`.
SLIME_STATUS = {"completed": "completed", "truncated": "truncated"}


def rows(group: Group) -> Iterator[Tuple[Trajectory, Segment]]:
    """The rows of the rollouts that count, those with a sampled token only."""
    for trajectory in group.trajectories:
        for segment in trajectory.segments:
            if segment.prompt_len < len(segment):
                yield trajectory, segment


def slime(group: Group, images: Optional[Loader] = _refuse) -> List[Dict[str, Any]]:
    """Keyword arguments of slime's `Sample`, one a row. A rollout without a reward is marked `remove_sample`.

    Images come as `multimodal_inputs`; their digests and places are in `metadata`.
    """
    out = []
    for trajectory, segment in rows(group):
        start = segment.prompt_len
        loaded = _loaded(segment, images)
        out.append(
            {
                "group_index": group.group_index,
                "index": trajectory.rollout_id,
                "tokens": segment.tokens.tolist(),
                "response_length": len(segment) - start,
                "loss_mask": segment.mask[start:].tolist(),
                "rollout_log_probs": segment.logprobs[start:].tolist(),
                "weight_versions": [run.label for run in segment.version_runs],
                "reward": 0.0 if trajectory.reward is None else trajectory.reward,
                "remove_sample": trajectory.reward is None,
                "status": SLIME_STATUS.get(trajectory.status, "aborted"),
                "metadata": {
                    "group_id": group.group_id,
                    "traj_id": trajectory.traj_id,
                    "task_id": group.task_id,
                    **_places(segment),
                },
                **({"multimodal_inputs": {"images": loaded}} if loaded else {}),
            }
        )
    return out


def verl(group: Group, images: Optional[Loader] = _refuse) -> List[Dict[str, Any]]:
    """The fields of verl's `AgentLoopOutput`, one a row, with the first and last version as `extra_fields`.

    Images come as `multi_modal_data`; their digests and places are in `extra_fields`.
    """
    out = []
    for trajectory, segment in rows(group):
        start = segment.prompt_len
        loaded = _loaded(segment, images)
        labels = [run.label for run in segment.version_runs]
        extra: Dict[str, Any] = {"group_id": group.group_id, "traj_id": trajectory.traj_id, **_places(segment)}
        if labels:
            extra["min_version"], extra["max_version"] = _lowest_and_highest(labels)
        out.append(
            {
                "prompt_ids": segment.tokens[:start].tolist(),
                "response_ids": segment.tokens[start:].tolist(),
                "response_mask": segment.mask[start:].tolist(),
                "response_logprobs": segment.logprobs[start:].tolist(),
                "reward_score": trajectory.reward,
                "num_turns": len(trajectory.calls),
                "extra_fields": extra,
                **({"multi_modal_data": {"images": loaded}} if loaded else {}),
            }
        )
    return out


def tinker(
    segment: Segment,
    advantages: Optional[npt.NDArray[np.float32]] = None,
    images: Optional[Loader] = _refuse,
) -> Dict[str, Any]:
    """The arrays of a Tinker `Datum`: inputs, and targets moved by one. A masked token has advantage 0.

    `advantages` has one value a token; where it is left out the row's own are taken, and `ValueError` says if it has none.
    Images come as `images`: `(start, len, image)` in the inputs.
    """
    loaded = _loaded(segment, images)
    if advantages is None:
        advantages = segment.advantages
    if advantages is None:
        raise ValueError("the row carries no advantages; pass them")
    if len(advantages) != len(segment):
        raise ValueError(f"{len(advantages)} advantages for {len(segment)} tokens")
    return {
        "input_tokens": segment.tokens[:-1],
        "target_tokens": segment.tokens[1:],
        "logprobs": segment.logprobs[1:],
        "advantages": (advantages * segment.mask)[1:].astype(np.float32),
        **({"images": [(span.start, span.len, image) for span, image in zip(segment.images, loaded)]} if loaded else {}),
    }


def _loaded(segment: Segment, images: Optional[Loader]) -> List[Any]:
    """The images of a row, in order; none where they are to be ignored."""
    if images is _refuse and segment.images:
        raise ImagesIgnored(
            f"the row holds {len(segment.images)} images; pass images=espalier.samples.Images(path) to load them, "
            "or images=None to train on its tokens alone"
        )
    return [] if images is None else [images(span.digest) for span in segment.images]


def _places(segment: Segment) -> Dict[str, Any]:
    return {"images": [span._asdict() for span in segment.images]} if segment.images else {}


def _lowest_and_highest(labels: List[str]) -> Tuple[str, str]:
    """By number where all are numbers, else by when they first came."""
    if all(label.isdigit() for label in labels):
        return min(labels, key=int), max(labels, key=int)
    return labels[0], labels[-1]
