"""Groups as the engine exports them (`group/v1`), from msgpack or JSON Lines.

    for group in espalier.samples.read("samples.msgpack"):
        for trajectory in group.trajectories:
            for segment in trajectory.segments:
                segment.tokens, segment.mask, segment.logprobs   # NumPy arrays of one length

`check` verifies every invariant of the format without trusting the engine that wrote it; the same from a shell is
`python -m espalier.samples check FILE`.
"""

from .advantages import (
    advantages,
    batch_advantages,
    turn_advantages,
    with_advantages,
    with_batch_advantages,
)
from .check import Finding, Report, check_file, check_group
from .decode import FormatError, read_raw
from .images import ImageMissing, Images
from .records import (
    Call,
    ErrorNote,
    Excluded,
    Group,
    ImageSpan,
    Parent,
    RewardPart,
    Segment,
    Span,
    TokenSums,
    Trajectory,
    VersionRun,
    VersionSpan,
    loads,
    read,
)
from .rows import per_call

__all__ = [
    "Call",
    "ErrorNote",
    "Excluded",
    "Finding",
    "FormatError",
    "Group",
    "ImageMissing",
    "ImageSpan",
    "Images",
    "Parent",
    "Report",
    "RewardPart",
    "Segment",
    "Span",
    "TokenSums",
    "Trajectory",
    "VersionRun",
    "VersionSpan",
    "advantages",
    "batch_advantages",
    "check_file",
    "check_group",
    "loads",
    "per_call",
    "read",
    "read_raw",
    "turn_advantages",
    "with_advantages",
    "with_batch_advantages",
]
