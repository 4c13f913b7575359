"""Which groups a reader holds, and which the trainer's weights contain: what makes each group train once."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..errors import StateMismatch
from ..model import Batch, Lease

#: The form of a state.
FORMAT = "espalier.delivery/1"


@dataclass
class Held:
    """A lease that counts, as far as is known."""

    lease: Lease
    #: Until then it holds for certain: counted from before it was asked for, by the clock of this process.
    until: float
    #: No extension reaches beyond.
    hold_until: float
    #: The weights contain the group: it is kept until the next `ack`.
    trained: bool = False


class Ledger:
    """Times are seconds of one clock, by parameter. May be used from several threads."""

    def __init__(self, model: str) -> None:
        self._lock = threading.RLock()
        self._model = model
        self._held: Dict[str, Held] = {}
        #: By group: the step of the checkpoint that contains it; None where no checkpoint does yet.
        self._trained: Dict[str, Optional[int]] = {}
        self._epoch = 0
        self.train_step = 0

    @property
    def epoch(self) -> int:
        """Leases that were asked for in an earlier one are not taken."""
        return self._epoch

    def halt(self) -> None:
        """What is asked for now will not be taken."""
        with self._lock:
            self._epoch += 1

    def take(
        self, leases: Iterable[Lease], sent: float, lease_s: float, hold_s_max: float, epoch: int
    ) -> Tuple[List[Lease], Dict[int, List[Lease]]]:
        """Those to train on; and those that a checkpoint contains, by its step, to be acknowledged at once.

        Groups that the weights contain and no checkpoint does are held until the next `ack`, and not given out.
        """
        fresh: List[Lease] = []
        again: Dict[int, List[Lease]] = {}
        with self._lock:
            for lease in leases:
                if epoch != self._epoch:
                    break
                step = self._trained.get(lease.group_id)
                if step is not None:
                    again.setdefault(step, []).append(lease)
                    continue
                trained = lease.group_id in self._trained
                hold_until = sent + hold_s_max
                self._held[lease.group_id] = Held(lease, min(sent + lease_s, hold_until), hold_until, trained)
                if not trained:
                    fresh.append(lease)
        return fresh, again

    def held(self) -> int:
        """Groups that are held."""
        with self._lock:
            return len(self._held)

    def leases(self) -> List[str]:
        """Ids of all leases, to be extended."""
        with self._lock:
            return [held.lease.lease_id for held in self._held.values()]

    def extended(self, lease_ids: Iterable[str], sent: float, lease_s: float) -> None:
        with self._lock:
            known = set(lease_ids)
            for held in self._held.values():
                if held.lease.lease_id in known:
                    held.until = max(held.until, min(sent + lease_s, held.hold_until))

    def refused(self, lease_id: str) -> None:
        """The service says that the lease counts no more."""
        with self._lock:
            self._held = {group: held for group, held in self._held.items() if held.lease.lease_id != lease_id}

    def lost(self, batch: Batch, now: float) -> List[str]:
        """Groups of a batch whose leases do not count for certain."""
        with self._lock:
            return [lease.group_id for lease in batch.leases if not self._counts(lease, now)]

    def _counts(self, lease: Lease, now: float) -> bool:
        held = self._held.get(lease.group_id)
        return held is not None and held.lease.lease_id == lease.lease_id and held.until > now

    def trained(self, batch: Batch, train_step: int) -> None:
        """The weights of this step, and of later ones, contain the groups."""
        with self._lock:
            if train_step < self.train_step:
                raise ValueError(f"train_step {train_step} comes before {self.train_step}, which was said already")
            self.train_step = train_step
            for lease in batch.leases:
                self._trained.setdefault(lease.group_id, None)
                held = self._held.get(lease.group_id)
                if held is not None:
                    held.trained = True

    def pending(self) -> Tuple[Dict[str, str], List[str]]:
        """Groups that wait for `ack`: by group their leases, and those without a lease that counts."""
        with self._lock:
            waiting = [group for group, step in self._trained.items() if step is None]
            leases = {group: self._held[group].lease.lease_id for group in waiting if group in self._held}
            return leases, [group for group in waiting if group not in leases]

    def acknowledged(self, groups: Iterable[str], train_step: int) -> None:
        """A checkpoint contains them, whether or not their ack was accepted: delivered again, they are not given out."""
        with self._lock:
            for group in groups:
                self._trained[group] = train_step
                self._held.pop(group, None)

    def untrained(self, batch: Optional[Batch] = None) -> List[str]:
        """Leases of groups that the weights do not contain, of a batch or of all; they are not held any more."""
        with self._lock:
            groups = [group for group, held in self._held.items() if not held.trained]
            if batch is not None:
                own = {lease.lease_id for lease in batch.leases}
                groups = [group for group in groups if self._held[group].lease.lease_id in own]
            return [self._held.pop(group).lease.lease_id for group in groups]

    def state(self, run_id: str) -> Dict[str, Any]:
        """What a checkpoint holds; plain values."""
        with self._lock:
            leases, _ = self.pending()
            return {
                "format": FORMAT,
                "run_id": run_id,
                "model": self._model,
                "train_step": self.train_step,
                "group_ids": list(self._trained),
                "leases": leases,
            }

    def load(self, state: Mapping[str, Any], run_id: str) -> Sequence[str]:
        """Begins with a checkpoint; the leases that it had not acknowledged."""
        try:
            form, of_run, model = state["format"], state["run_id"], state["model"]
            step, groups, leases = int(state["train_step"]), list(state["group_ids"]), dict(state["leases"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateMismatch(f"this is not what state_dict() returned: {type(error).__name__}: {error}") from error
        if form != FORMAT:
            raise StateMismatch(f"the state has the form {form!r}; this reader knows {FORMAT!r}")
        if (of_run, model) != (run_id, self._model):
            raise StateMismatch(
                f"the state is of model {model!r} of run {of_run!r}; this reader reads model {self._model!r} of run {run_id!r}"
            )
        with self._lock:
            self._epoch += 1
            self._held = {}
            self._trained = dict.fromkeys(groups, step)
            self.train_step = step
        return list(leases.values())

    def forget(self, train_step: int) -> None:
        """Begins with the weights of a step, and without what is known of groups of later ones."""
        with self._lock:
            self._epoch += 1
            self._held = {}
            self._trained = {group: step for group, step in self._trained.items() if step is not None and step <= train_step}
            self.train_step = train_step
