"""The trainer of `make demo-train`: fine-tuning on reference episodes, then GRPO over the scored groups of a run.

    trainer.py sft  --model DIR --episodes chat.jsonl --out DIR
    trainer.py grpo --model DIR --folder DIR --run RUN --url unix:SOCKET --store DIR --espalier BIN --steps 8 --groups 16

Plain PyTorch. Token ids, masks, logprobs of the sampling and advantages come in the rows of `espalier.GroupReader`; nothing is tokenized
here but the reference episodes. Checkpoints are folders that a server can load; with the optimizer they hold `state_dict()` of the reader,
so that a trainer that was killed goes on from any of them and trains each group once. `trainer.jsonl` says what happened, line by line.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import secrets
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from espalier import GroupReader
from espalier.delivery import Batch, LeaseLost
from espalier.samples import Segment

#: Checkpoints that are kept.
KEPT = 2
#: What a folder holds beside configuration and tokenizer.
WEIGHTS, STATE, LABEL = "model.safetensors", "trainer.pt", "label"


def load(folder: Path) -> torch.nn.Module:
    """The model with weights in single precision; what it computes is in bfloat16 (`logprobs`)."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.config.use_cache = False
    return model.to("cuda" if torch.cuda.is_available() else "cpu").train()


def write_weights(model: torch.nn.Module, like: Path, out: Path, label: str) -> None:
    """A folder that a server can load: weights in bfloat16, configuration and tokenizer of `like`, and the label of the weights."""
    for file in like.iterdir():
        if file.is_file() and file.name not in (WEIGHTS, STATE, LABEL):
            shutil.copy(file, out / file.name)
    left_out = "lm_head.weight" if model.config.tie_word_embeddings else ""
    weights = {name: tensor for name, tensor in model.state_dict().items() if name != left_out}
    save_file({name: tensor.to("cpu", torch.bfloat16).contiguous() for name, tensor in weights.items()}, out / WEIGHTS, {"format": "pt"})
    (out / LABEL).write_text(label)


def logprobs(model: torch.nn.Module, rows: List[Tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Of each row's tokens that its mask names: all rows behind one another, in nats."""
    device = next(model.parameters()).device
    longest = max(len(tokens) for tokens, _ in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)
    mask = torch.zeros(len(rows), longest, dtype=torch.bool)
    for at, (row, trained) in enumerate(rows):
        tokens[at, : len(row)], mask[at, : len(row)] = row, trained
    tokens, mask = tokens.to(device), mask.to(device)
    with torch.autocast(device.type, torch.bfloat16):
        # What fills up a row stands behind it, and no token looks ahead.
        hidden = model.model(input_ids=tokens).last_hidden_state
        # A token's distribution is at the place before it.
        logits = model.lm_head(hidden[:, :-1][mask[:, 1:]])
    wanted = tokens[:, 1:][mask[:, 1:]]
    return torch.log_softmax(logits.float(), -1).gather(-1, wanted.unsqueeze(-1)).squeeze(-1)


def optimizer_of(model: torch.nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)


def update(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """One step of the optimizer; the norm of the gradient."""
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(norm)


def episode(tokenizer: Any, messages: List[Dict[str, Any]]) -> Tuple[torch.Tensor, torch.Tensor]:
    """A conversation as the experiment's template `plain` has it: contents in order. The model learns its answers and the line end that
    stops them; each piece is tokenized by itself, as the engine does."""
    pieces: List[Tuple[str, bool]] = []
    for message in messages:
        if message["role"] == "assistant":
            pieces += [(message["content"], True), ("\n", True)]
        else:
            pieces.append((message["content"].removeprefix("\n") if pieces else message["content"], False))
    ids = [(tokenizer(text, add_special_tokens=False)["input_ids"], trained) for text, trained in pieces]
    return torch.tensor([one for part, _ in ids for one in part]), torch.tensor([trained for part, trained in ids for _ in part])


def sft(args: argparse.Namespace) -> None:
    """So many passes over the episodes; writes a folder with weights."""
    tokenizer = AutoTokenizer.from_pretrained(args.model)
    episodes = [episode(tokenizer, json.loads(line)["messages"]) for line in args.episodes.read_text().splitlines()]
    model = load(args.model)
    optimizer = optimizer_of(model, args.rate)
    draw = random.Random(args.seed)
    for passed in range(args.passes):
        draw.shuffle(episodes)
        for begin in range(0, len(episodes), args.batch):
            batch = episodes[begin : begin + args.batch]
            trained, total = sum(int(mask[1:].sum()) for _, mask in batch), 0.0
            for at in range(0, len(batch), args.micro):
                loss = -logprobs(model, batch[at : at + args.micro]).sum() / trained
                loss.backward()
                total += loss.item()
            update(model, optimizer)
            print(f"fine-tuning: pass {passed + 1}, {begin + len(batch)} of {len(episodes)} episodes, loss {total:.3f}", flush=True)
    part = fresh(args.out.with_suffix(".part"))
    write_weights(model, args.model, part, "sft")
    part.rename(args.out)


def chosen(batch: Batch, rows_max: int) -> List[Segment]:
    """The rows with the largest advantages, of those that have one: a group of equal rewards teaches nothing."""
    rows = [row for group in batch for trajectory in group.trajectories for row in trajectory.segments if row.advantages is not None]
    sizes = [float(np.abs(row.advantages * row.mask).max(initial=0.0)) for row in rows]
    order = sorted(range(len(rows)), key=lambda at: -sizes[at])
    return [rows[at] for at in order[:rows_max] if sizes[at] > 0]


def train(model: torch.nn.Module, optimizer: Any, rows: List[Segment], args: argparse.Namespace, step: int) -> Dict[str, Any]:
    """One pass over the rows in minibatches, a step of the optimizer for each; the clipped objective of PPO with the advantages of the rows,
    averaged over tokens. The ratio is that of the distributions at temperature 1, as the server reports logprobs."""
    device = next(model.parameters()).device
    rows = random.Random(args.seed * 1_000_003 + step).sample(rows, len(rows))
    size = max(-(-len(rows) // args.minibatches), 1)
    differences: List[float] = []
    norms: List[float] = []
    clipped = tokens = 0
    for begin in range(0, len(rows), size):
        # Of like length together, so that little is filled up.
        batch = sorted(rows[begin : begin + size], key=len)
        trained = sum(int((row.mask == 1).sum()) for row in batch)
        for at in range(0, len(batch), args.micro):
            part = batch[at : at + args.micro]
            new = logprobs(model, [(torch.from_numpy(row.tokens.astype(np.int64)), torch.from_numpy(row.mask == 1)) for row in part])
            old = torch.from_numpy(np.concatenate([row.logprobs[row.mask == 1] for row in part])).to(device)
            advantage = torch.from_numpy(np.concatenate([row.advantages[row.mask == 1] for row in part])).to(device)
            ratio = torch.exp(new - old)
            held = torch.clamp(ratio, 1 - args.clip, 1 + args.clip_high)
            (-torch.minimum(ratio * advantage, held * advantage).sum() / trained).backward()
            clipped += int((ratio * advantage > held * advantage).sum())
            tokens += len(new)
            # Before the first step of the optimizer the server and the trainer have the same weights.
            differences += (new.detach() - old).abs().tolist() if begin == 0 else []
        norms.append(update(model, optimizer))
    return {
        "rows": len(rows), "tokens": tokens, "clipped": clipped / max(tokens, 1), "gradient_norm": sum(norms) / max(len(norms), 1),
        "logprob_difference": sum(differences) / len(differences) if differences else None,
    }  # fmt: skip


def grpo(args: argparse.Namespace) -> None:
    """Trains until `--steps`, from the newest checkpoint in the folder, or from `--model`."""
    log = Log(args.folder / "trainer.jsonl")
    base = next(reversed(checkpoints(args.folder)), args.model)
    model = load(args.model)
    optimizer = optimizer_of(model, args.rate)
    saved: Dict[str, Any] = {"step": 0, "label": (args.model / LABEL).read_text(), "reader": None}
    if base != args.model:
        saved = torch.load(base / STATE, map_location="cpu", weights_only=True)
        model.load_state_dict(saved.pop("model"))
        optimizer.load_state_dict(saved.pop("optimizer"))
    step, state = saved["step"], saved["reader"]
    # Nothing is leased ahead: a group is sampled with the weights that it trains.
    with GroupReader(
        args.run, base_url=args.url, groups=args.groups, exact=True, prefetch=0, holder="trainer", advantages=args.advantages
    ) as reader:
        again = reader.rewind(0) if state is None else reader.load_state_dict(state)
        log("begin", step=step, groups=[] if state is None else state["group_ids"], again=again)
        # The server may have been restarted, or have weights of a later step than this checkpoint.
        put(args, base, saved["label"], step)
        while step < args.steps:
            times, client_cpu = [time.monotonic()], children_cpu_s()
            batch = next(reader, None)
            if batch is None:
                sys.exit(f"the run has no further {args.groups} groups after step {step}")
            times.append(time.monotonic())
            reader.check(batch)
            step += 1
            log("trained", step=step, groups=batch.group_ids, **seen(batch), **train(model, optimizer, chosen(batch, args.rows_max), args, step))
            times.append(time.monotonic())
            reader.trained(batch, step)
            label = f"step-{step}-{secrets.token_hex(3)}"
            folder = save(args, model, optimizer, {"step": step, "label": label, "reader": reader.state_dict()})
            times.append(time.monotonic())
            still_ms = put(args, folder, label, step)
            try:
                reader.ack(step)
            except LeaseLost as error:
                # No other trainer shares these weights, and this reader gives none of them out again.
                log("late", step=step, groups=error.group_ids)
            times.append(time.monotonic())
            took = [round(after - before, 3) for before, after in zip(times, times[1:])]
            log(
                "saved", step=step, label=label, still_ms=still_ms, client_cpu_s=round(children_cpu_s() - client_cpu, 3),
                step_s=round(times[-1] - times[0], 3), **dict(zip(("sampling_s", "training_s", "saving_s", "weights_s"), took)),
            )  # fmt: skip


def seen(batch: Batch) -> Dict[str, Any]:
    """Rewards of a batch, and which weights sampled its tokens."""
    trajectories = [trajectory for group in batch for trajectory in group.trajectories]
    rewards = [one.reward for one in trajectories if one.reward is not None]
    versions: Dict[str, int] = {}
    for span in (span for one in trajectories for call in one.calls for span in call.versions):
        versions[span.label] = versions.get(span.label, 0) + span.len
    return {"rollouts": len(rewards), "reward": float(np.mean(rewards)), "solved": float(np.mean(np.array(rewards) >= 1)), "versions": versions}


def put(args: argparse.Namespace, folder: Path, label: str, step: int) -> int:
    """Puts weights into the servers of the run's model through the engine; how long sampling stood still, milliseconds."""
    words = [args.espalier, "--store", args.store, "weights", args.run, label, "--path", folder, "--train-step", step, "--json"]
    done = subprocess.run([str(word) for word in words], stdout=subprocess.PIPE, check=False)
    if done.returncode != 0:
        sys.exit(f"the servers did not take {label} (exit code {done.returncode}): {done.stdout.decode()}")
    return max(server["still_ms"] for server in json.loads(done.stdout)["report"]["servers"])


def save(args: argparse.Namespace, model: Any, optimizer: Any, state: Dict[str, Any]) -> Path:
    """Writes a checkpoint, whole or not at all, and removes older ones than the last few."""
    folder = args.folder / "checkpoints" / f"step-{state['step']:05}"
    part = fresh(folder.with_suffix(".part"))
    write_weights(model, args.model, part, state["label"])
    torch.save({**state, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, part / STATE)
    part.rename(folder)
    for old in checkpoints(args.folder)[:-KEPT]:
        shutil.rmtree(old)
    return folder


def checkpoints(folder: Path) -> List[Path]:
    """Whole ones, oldest first."""
    return sorted(path for path in (folder / "checkpoints").glob("step-*") if path.suffix != ".part")


def fresh(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


class Log:
    """A file of JSON lines: each is on its way to the disk before what it says is gone on from."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a")

    def __call__(self, event: str, **values: Any) -> None:
        self._file.write(json.dumps({"time": round(time.time(), 3), "event": event, **values}) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())


def children_cpu_s() -> float:
    """Processor time of the commands of the engine that were run here."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tuning, then GRPO over the scored groups of a run.")
    parser.add_argument("kind", choices=("sft", "grpo"))
    for name in ("model", "episodes", "out", "folder", "store", "espalier"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--run")
    parser.add_argument("--url", help="where the run delivers groups: unix:SOCKET, or the address of a service")
    numbers = {"seed": 7, "micro": 4, "passes": 1, "batch": 16, "steps": 8, "groups": 16, "rows-max": 48, "minibatches": 3}
    for name, default in {**numbers, "rate": None, "clip": 0.2, "clip-high": 0.28}.items():
        parser.add_argument(f"--{name}", type=int if name in numbers else float, default=default)
    parser.add_argument("--advantages", default="grpo", help="a kind of espalier.samples.KINDS")
    args = parser.parse_args()
    args.rate = args.rate or {"sft": 4e-5, "grpo": 2e-5}[args.kind]
    torch.manual_seed(args.seed)
    {"sft": sft, "grpo": grpo}[args.kind](args)


if __name__ == "__main__":
    main()
