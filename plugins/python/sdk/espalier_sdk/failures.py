"""Failures: what a call of the engine raises, and what a plugin may raise to end with the same one."""

from typing import Any

from .source import plain


class Failure(Exception):
    """What a call of the engine failed with. Raised out of a plugin's function, it is what that function returns."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


class Budget(Failure):
    """A budget is used up: finish within a few further calls, or be stopped."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"budget: {kind}")
        #: ``turns``, ``tokens``, ``sampled-tokens``, ``wall``, ``host-calls``, ``blob-bytes`` or a newer one.
        self.kind = kind


class Cancelled(Failure):
    """The rollout is being stopped: return soon."""

    def __init__(self) -> None:
        super().__init__("cancelled")


class Denied(Failure):
    """The experiment does not grant this capability."""


class Unavailable(Failure):
    """Infrastructure failed after the engine's own retries."""


class Invalid(Failure):
    """Misuse; the text names the value."""


class Other(Failure):
    """Any other failure, with a stable word for programs and a sentence for people."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code

    def __str__(self) -> str:
        return f"{self.code}: {self.text}"


_BUDGETS = {
    "turns": "Turns",
    "tokens": "Tokens",
    "sampled-tokens": "SampledTokens",
    "wall": "Wall",
    "host-calls": "HostCalls",
    "blob-bytes": "BlobBytes",
}


def from_wit(value: Any) -> Failure:
    """The exception of a ``failure`` of the interfaces."""
    case = type(value).__name__.removeprefix("Failure_")
    if case == "Budget":
        name = type(value.value).__name__.removeprefix("BudgetKind_")
        kinds = {case: kind for kind, case in _BUDGETS.items()}
        return Budget(kinds.get(name) or value.value.value)
    if case == "Cancelled":
        return Cancelled()
    if case == "Other":
        return Other(value.value.code, value.value.text)
    classes: dict[str, type[Failure]] = {"Denied": Denied, "Unavailable": Unavailable, "Invalid": Invalid}
    return classes[case](value.value)


def to_wit(failure: Failure, types: Any) -> Any:
    """The ``failure`` of the interfaces, of the classes in ``types``."""
    if isinstance(failure, Budget):
        case = _BUDGETS.get(failure.kind)
        kind = getattr(types, f"BudgetKind_{case}")() if case else types.BudgetKind_Other(plain(str(failure.kind)))
        return types.Failure_Budget(kind)
    if isinstance(failure, Cancelled):
        return types.Failure_Cancelled()
    text = plain(str(failure.text))
    if isinstance(failure, Denied):
        return types.Failure_Denied(text)
    if isinstance(failure, Unavailable):
        return types.Failure_Unavailable(text)
    if isinstance(failure, Invalid):
        return types.Failure_Invalid(text)
    code = plain(str(failure.code)) if isinstance(failure, Other) else "failure"
    return types.Failure_Other(types.OtherFailure(code=code, text=text))
