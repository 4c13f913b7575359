"""Has :mod:`random` draw from the engine's stream, which follows from the seed of the run.

Its functions would otherwise give the same numbers in each rollout: their state is part of the component. The engine is asked once,
when the first number is drawn. Classes of :mod:`random` made without a seed, ``os.urandom``, :mod:`secrets` and :mod:`uuid` draw from
the engine by themselves, and :mod:`time` shows its clock.
"""

import random
from typing import Any

from . import wit

#: Bytes of a seed.
SEED_BYTES = 16


class EngineRandom(random.Random):
    """A source that is seeded by the engine at its first draw."""

    _inner: random.Random | None = None

    def drawn(self) -> random.Random:
        """The source of numbers."""
        if self._inner is None:
            seed = wit.call(wit.random.bytes, SEED_BYTES)
            self._inner = random.Random(int.from_bytes(seed, "little"))
        return self._inner

    def begin(self) -> None:
        """The next draw asks for a seed."""
        self.seed(None)

    def random(self) -> float:
        return self.drawn().random()

    def getrandbits(self, k: int, /) -> int:
        return self.drawn().getrandbits(k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        self.gauss_next = None
        self._inner = None
        if a is not None:
            self._inner = random.Random()
            self._inner.seed(a, version)

    def getstate(self) -> tuple[Any, ...]:
        return self.drawn().getstate()

    def setstate(self, state: tuple[Any, ...]) -> None:
        self.gauss_next = None
        self._inner = random.Random()
        self._inner.setstate(state)


def install() -> EngineRandom:
    """Replaces the functions of :mod:`random`. Until `begin`, they draw from a fixed seed: nothing can be asked at build."""
    source = EngineRandom(0)
    module: Any = random
    former = module._inst
    for name, function in list(vars(random).items()):
        if getattr(function, "__self__", None) is former:
            setattr(random, name, getattr(source, name))
    module._inst = source
    source.seed(0)
    return source
