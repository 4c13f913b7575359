"""What is said of a command, and of a sandbox that is to be made, in the service's words."""

from __future__ import annotations

import base64
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple, Union

from .requests import cores, size

Command = Union[str, Sequence[str]]
#: `"none"`, `"loopback"`, or what may be reached: `["pypi.org:443"]`.
Network = Union[str, Sequence[str]]


def command_body(
    command: Command,
    timeout: Optional[float],
    cwd: Optional[str],
    env: Optional[Mapping[str, str]],
    *,
    login_shell: bool = False,
    user: Optional[str] = None,
    stdin: Union[str, bytes, None] = None,
    stdin_open: bool = False,
    shell: Optional[str] = None,
    output_max: Optional[int] = None,
    merge_stderr: bool = False,
    label: Optional[str] = None,
    terminal: Optional[Tuple[int, int]] = None,
) -> Dict[str, Any]:
    """The body of `POST commands`, without its id. `timeout` in seconds; None or 0: no limit."""
    words: Union[str, List[str]] = command if isinstance(command, str) else [str(word) for word in command]
    if login_shell:
        if not isinstance(words, str):
            raise ValueError("login_shell takes a command as one text")
        words = ["bash", "-lc", words]
    body: Dict[str, Any] = {"command": words, "timeout_s": timeout or 0}
    body.update(
        shell=shell,
        cwd=cwd,
        env=dict(env) if env else None,
        user=user,
        stdin=stdin if isinstance(stdin, str) else None,
        stdin_base64=base64.b64encode(stdin).decode() if isinstance(stdin, bytes) else None,
        stdin_open=stdin_open or None,
        output_max=output_max,
        merge_stderr=merge_stderr or None,
        label=label,
        terminal={"rows": terminal[0], "columns": terminal[1]} if terminal else None,
    )
    return {key: value for key, value in body.items() if value is not None}


def input_given(body: Mapping[str, Any]) -> int:
    """Bytes of standard input that the command begins with."""
    if "stdin_base64" in body:
        return len(base64.b64decode(body["stdin_base64"]))
    return len(str(body.get("stdin", "")).encode())


def sandbox_body(
    image: Optional[str],
    block_network: Optional[bool],
    cpu: Union[int, float, str, None],
    memory: Union[int, str, None],
    disk: Union[int, str, None],
    network: Optional[Network],
    env: Optional[Mapping[str, str]],
    files: Optional[Mapping[str, Any]],
    setup: Union[str, Sequence[str], None],
    labels: Optional[Mapping[str, str]],
    require: Optional[Sequence[str]],
    checkpoint: Optional[str],
    **more: Any,
) -> Dict[str, Any]:
    """The body of `POST sandboxes`."""
    if block_network and network not in (None, "none"):
        raise ValueError("block_network and network say different things")
    if block_network is False and network is None:
        raise ValueError('block_network=False: name what may be reached, such as network=["pypi.org:443"]')
    if checkpoint is None and image is None:
        image = "host"
    body: Dict[str, Any] = {
        "image": image,
        "checkpoint": checkpoint,
        "cpu": cores(cpu),
        "memory": size(memory),
        "disk": size(disk),
        "network": network if network is None or isinstance(network, str) else list(network),
        "env": dict(env) if env else None,
        "files": dict(files) if files else None,
        "setup": setup if setup is None or isinstance(setup, str) else list(setup),
        "labels": dict(labels) if labels else None,
        "require": list(require) if require else None,
        **more,
    }
    return {key: value for key, value in body.items() if value is not None}
