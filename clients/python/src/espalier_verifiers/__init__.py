"""`espalier.adapters.verifiers` under a name that verifiers imports as a plugin: `env.id` and `env.taskset.id` are "espalier-verifiers"."""

from espalier.adapters.verifiers import EspalierEnv, EspalierTaskset

__all__ = ["EspalierEnv", "EspalierTaskset"]
