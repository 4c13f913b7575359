"""What tests of failing connections share: the service, which client, and faults for one request."""

from __future__ import annotations

from typing import Any, Callable, Iterator, List, Optional

import pytest
from both import KINDS
from espalier import sandbox as api
from fake import Fault, Service


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Repeats come soon; that they come later and later is tested without waiting."""
    monkeypatch.setattr("espalier.sandbox.core.retry.DELAY_FIRST", 0.001)
    monkeypatch.setattr("espalier.sandbox.core.retry.DELAY_MAX", 0.02)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.close()


def once(number: Callable[[str, str], bool], fault: Fault) -> Callable[[int, str, str], Optional[Fault]]:
    """The fault for the first request that it is for."""
    done: List[int] = []

    def find(count: int, method: str, path: str) -> Optional[Fault]:
        if not done and number(method, path):
            done.append(count)
            return fault
        return None

    return find


def is_command(method: str, path: str) -> bool:
    return "/commands" in path


def runs(service: Service) -> int:
    return sum(command.runs for command in service.commands.values())


def both(stream: Any) -> "tuple[bytes, bytes, List[Any]]":
    """What came on each stream, and all that was not output."""
    out, others = {"stdout": b"", "stderr": b""}, []
    for event in stream:
        if isinstance(event, api.Output):
            assert event.offset == len(out[event.stream])
            out[event.stream] += event.data
        else:
            others.append(event)
    return out["stdout"], out["stderr"], others
