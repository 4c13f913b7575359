"""What the demo shows: reward by step as a plot for a terminal and as a PNG, and the table at the end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence, Tuple

#: Columns and lines of the plot.
WIDTH = 80
HEIGHT = 12


def plot(points: Sequence[Tuple[int, float]], title: str) -> List[str]:
    """Values by step, as lines of at most 80 columns: `*` is a step, dots lead from one to the next."""
    if not points:
        return [f"{title}: no step yet"]
    values = [value for _, value in points]
    low, high = min(0.0, *values), max(1.0, *values) if max(values) > 0 else 0.0
    span = (high - low) or 1.0
    inner = WIDTH - 8
    first, last = points[0][0], points[-1][0]
    column = lambda step: round((step - first) / max(last - first, 1) * (inner - 1))  # noqa: E731
    row = lambda value: HEIGHT - 1 - round((value - low) / span * (HEIGHT - 1))  # noqa: E731
    field = [[" "] * inner for _ in range(HEIGHT)]
    for (one, before), (other, after) in zip(points, points[1:]):
        begin, end = column(one), column(other)
        for at in range(begin + 1, end):
            field[row(before + (after - before) * (at - begin) / (end - begin))][at] = "."
    for step, value in points:
        field[row(value)][column(step)] = "*"
    lines = [title]
    for at, cells in enumerate(field):
        label = f"{high - span * at / (HEIGHT - 1):6.2f}" if at % 3 == 0 or at == HEIGHT - 1 else " " * 6
        lines.append(f"{label} |{''.join(cells)}".rstrip())
    lines.append(" " * 7 + "+" + "-" * inner)
    lines.append(f"{'step':>6}  {first:<{inner - len(str(last))}}{last}")
    return lines


def png(points: Sequence[Tuple[int, float]], before: Optional[float], after: Optional[float], title: str, file: Path) -> None:
    """The same as a picture, with the success on goals held out before and after."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=120)
    axes.plot([step for step, _ in points], [value for _, value in points], marker="o", label="reward of the rollouts of a step")
    if points:
        for value, step, name in ((before, points[0][0] - 1, "before"), (after, points[-1][0], "after")):
            if value is not None:
                axes.plot([step], [value], marker="D", linestyle="none", label=f"held-out success {name}: {value:.0%}")
    axes.set(xlabel="training step", title=title)
    if all(0 <= value <= 1 for _, value in points):
        axes.set_ylim(0, 1)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)
    pyplot.close(figure)


def step_line(step: Dict[str, Any]) -> str:
    """One step that is done."""
    difference = step.get("logprob_difference")
    parts = [
        f"step {step['step']:>2}  reward {step['reward']:5.2f}",
        f"{step['rows']:>3} rows",
        f"sampling {step['sampling_s']:.0f} s, training {step['training_s']:.0f} s, weights {step['weights_s']:.1f} s",
        f"logprobs off by {difference:.4f}" if difference is not None else "nothing to learn",
    ]
    return ", ".join(parts)


def summary(
    steps: Sequence[Dict[str, Any]], held_out: Dict[str, Optional[float]], shares: Dict[int, float], seconds: float
) -> List[str]:
    """The table at the end."""

    def mean(key: str) -> Optional[float]:
        values = [step[key] for step in steps if step.get(key) is not None]
        return sum(values) / len(values) if values else None

    def line(name: str, value: Optional[float], form: str) -> str:
        return f"{name:<58}{'-' if value is None else format(value, form):>12}"

    engine = sum(shares.values()) / len(shares) if shares else None
    return [
        line("held-out success before", held_out.get("before"), ".1%"),
        line("held-out success after", held_out.get("after"), ".1%"),
        line("minutes, all starts together", seconds / 60, ".1f"),
        line("steps", float(len(steps)), ".0f"),
        line("seconds of a step: sampling", mean("sampling_s"), ".1f"),
        line("seconds of a step: training", mean("training_s"), ".1f"),
        line("seconds of a step: writing the checkpoint", mean("saving_s"), ".1f"),
        line("seconds of a step: weights into the server", mean("weights_s"), ".1f"),
        line("milliseconds that sampling stood still for it", mean("still_ms"), ".0f"),
        line("processor time of the engine, of a step's time", engine, ".2%"),
        line("mean difference of logprobs, server and trainer (nats)", mean("logprob_difference"), ".4f"),
    ]


def seeds(folder: Path, small: bool) -> List[str]:
    """The trainings of a folder side by side, with their spread; nothing where there is only one."""
    files = sorted(folder.glob("seed-*-small/summary.json" if small else "seed-*[0-9]/summary.json"))
    known = [one for one in (json.loads(file.read_text()) for file in files) if "seconds" in one]
    if len(known) < 2:
        return []
    rows = [(f"seed {one['seed']}", one["held_out"]["before"], one["held_out"]["after"], one["seconds"] / 60) for one in known]
    columns = [[row[at] for row in rows if row[at] is not None] for at in (1, 2, 3)]
    for name, pick in (("mean", lambda values: sum(values) / len(values)), ("least", min), ("most", max)):
        before, after, minutes = (pick(values) if values else None for values in columns)
        rows.append((name, before, after, minutes))
    lines = ["", f"{'held-out success':<24}{'before':>10}{'after':>10}{'minutes':>10}"]
    for name, before, after, minutes in rows:
        shares = "".join(f"{'-' if share is None else format(share, '.1%'):>10}" for share in (before, after))
        lines.append(f"{name:<24}{shares}{minutes:>10.1f}")
    return lines
