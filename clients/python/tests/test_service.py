"""Both clients with the real service: everything that the package offers, in real sandboxes."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any, Iterator

import daemon
import httpx
import pytest
import websockets.sync.client
from both import KINDS, client
from espalier import sandbox as api

pytestmark = daemon.needed


@pytest.fixture(params=KINDS)
def c(request: pytest.FixtureRequest, served: Any) -> Iterator[Any]:
    with client(request.param, served.url, served.key) as c:
        yield c


@pytest.fixture
def sandbox(c: Any) -> Any:
    return c.create_sandbox(network="loopback")


def collect(stream: Any, out: bytes = b"") -> bytes:
    """Standard output of a stream that must be whole, after what came before."""
    for event in stream:
        assert not isinstance(event, api.Gap), event
        if isinstance(event, api.Output) and event.stream == "stdout":
            assert event.offset == len(out)
            out += event.data
    return out


def test_commands(sandbox: Any) -> None:
    result = sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.status) == ("out\n", "err\n", 3, "failed")
    assert sandbox.exec(["printf", "%s|", "a b", "c"]).stdout == "a b|c|"
    assert sandbox.exec("pwd; echo $A", cwd="/tmp", env={"A": "b c"}).stdout == "/tmp\nb c\n"
    assert sandbox.exec("cat", stdin=b"\x00\xff").stdout_raw == b"\x00\xff"
    assert sandbox.exec("cat", stdin="text").stdout == "text"
    assert sandbox.exec("echo a; echo b >&2; echo c", merge_stderr=True).stdout == "a\nb\nc\n"
    assert sandbox.exec("kill -9 $$").signal == 9
    missing = sandbox.exec(["/no/such/program"])
    assert missing.outcome == "not-started" and missing.failed and missing.error
    with pytest.raises(api.CommandFailed, match="exit code 1"):
        sandbox.exec("false", check=True)
    assert sandbox.exec("shopt -q login_shell && echo yes", login_shell=True).stdout == "yes\n"


def test_a_command_that_takes_too_long_keeps_what_it_printed(sandbox: Any) -> None:
    result = sandbox.exec("echo before; sleep 100 & sleep 100", timeout=0.5)
    assert (result.outcome, result.stdout, result.timed_out) == ("timed-out", "before\n", True)
    assert sandbox.exec("pgrep -c sleep || true").stdout.strip() in ("0", "")


@pytest.mark.parametrize("how", ["exec", "wait", "stream"])
def test_a_command_whose_machine_is_lost_has_an_unknown_end(c: Any, sandbox: Any, served: Any, how: str) -> None:
    listed = json.loads(served.daemon.command("sandbox", "list", "--json"))
    agent = next(each["pid"] for each in listed if json.loads(each["labels"]["espalier.api"])["id"] == sandbox.id)
    if how == "exec":
        killer = threading.Thread(target=killed_when_begun, args=(sandbox, "lost.1.1", agent))
        killer.start()
        result = sandbox.exec("echo begun; sleep 1000", id="lost.1.1", timeout=None)
        killer.join()
    elif how == "wait":
        process = sandbox.start("echo begun; sleep 1000", timeout=None)
        # Two seconds are enough for the request that waits to be there.
        killer = threading.Timer(2.0, killed_when_begun, args=(sandbox, process.id, agent))
        killer.start()
        result = process.wait(60)
        killer.join()
    else:
        stream = sandbox.start("echo begun; sleep 1000", timeout=None).events()
        begun = next(event for event in stream if isinstance(event, api.Output))
        os.kill(agent, signal.SIGKILL)
        assert begun.data == b"begun\n" and collect(stream, begun.data) == b"begun\n"
        result = stream.result
    assert (result.state, result.outcome, result.exit_code, result.lost) == ("ended", "unknown", None, True)
    assert result.failed and "lost" in str(result.message)
    with pytest.raises(api.SandboxLost):
        sandbox.exec("true")


def killed_when_begun(sandbox: Any, command: str, agent: int) -> None:
    """`kill -9` of the agent once the command has printed."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if sandbox.attach(command).poll().stdout:
                break
        except api.NotFound:
            pass
        time.sleep(0.02)
    os.kill(agent, signal.SIGKILL)


def test_output_over_the_bound_says_so(sandbox: Any) -> None:
    result = sandbox.exec("seq 1 50000", head_bytes=100, tail_bytes=50)
    whole = "".join(f"{number}\n" for number in range(1, 50001))
    assert result.truncated and result.stdout_bytes == len(whole) and result.stdout_omitted == len(whole) - 150
    assert result.stdout.startswith(whole[:100]) and result.stdout.endswith(whole[-50:])
    assert sandbox.attach(result.id).output() == whole.encode()
    assert sandbox.attach(result.id).output(start=len(whole) - 7) == whole[-7:].encode()


def test_output_that_is_not_all_there_is_not_taken_for_all(sandbox: Any) -> None:
    process = sandbox.start("head -c 3000000 /dev/zero | tr '\\0' 'a'; head -c 3000000 /dev/zero | tr '\\0' 'b'", output_max=1 << 20)
    process.wait(60)
    with pytest.raises(api.Lost):
        process.output()
    kept = process.output(allow_gaps=True)
    # The begin and the end, each once.
    assert 1 << 19 < len(kept) <= 1 << 20 and kept.strip(b"b").strip(b"a") == b""
    few = sandbox.exec("seq 1 100000", output_max=1 << 16, head_bytes=1 << 20, tail_bytes=1 << 20)
    again = process.poll() and sandbox.attach(few.id).poll()
    assert again.stdout_bytes == few.stdout_bytes
    assert again.stdout_omitted == few.stdout_omitted and again.stdout == few.stdout


def test_a_stream_gives_all_of_it_and_can_be_had_again(sandbox: Any) -> None:
    size = 3_000_000
    stream = sandbox.stream(f"head -c {size} /dev/zero | tr '\\0' 'x'; echo; echo end >&2")
    assert collect(stream) == b"x" * size + b"\n"
    assert stream.result.exit_code == 0 and stream.offsets == (size + 1, 4)
    again = stream.process.events(stdout_from=size - 5)
    assert b"".join(e.data for e in again if isinstance(e, api.Output) and e.stream == "stdout") == b"xxxxx\n"
    assert list(sandbox.stream("echo a; echo b").lines()) == ["a", "b"]


def test_a_stream_comes_as_it_is_printed(sandbox: Any) -> None:
    stream = sandbox.stream("echo first; read line; echo got $line", stdin_open=True)
    seen = b""
    for event in stream:
        if isinstance(event, api.Output):
            seen += event.data
            if seen == b"first\n":
                stream.process.write("more\n", end=True)
    assert seen == b"first\ngot more\n"


def test_input_of_any_size(sandbox: Any) -> None:
    data = random.Random(1).randbytes(3_000_000) if hasattr(random, "randbytes") else os.urandom(3_000_000)
    process = sandbox.start("cat > /tmp/in; sha256sum < /tmp/in", stdin_open=True)
    assert process.write(data)
    process.close_stdin()
    assert process.wait(30).exit_code == 0
    assert sandbox.download_content("/tmp/in") == data
    gone = sandbox.start("exec 0<&-; sleep 5", stdin_open=True)
    gone.kill()
    assert gone.wait(20).signal == 9


def test_input_that_nobody_reads_is_not_waited_for(sandbox: Any) -> None:
    process = sandbox.start("sleep 1000", stdin_open=True, timeout=None)
    with pytest.raises(api.WaitTimeout):
        process.write(b"x" * (1 << 20), timeout=1)
    process.signal(9, tree=True)
    assert process.wait(20).signal == 9


def test_input_waits_for_a_command_and_nothing_else_does(c: Any, served: Any) -> None:
    """Over the WebSocket itself: more input than is kept for a command that begins to read late, and its end."""
    sandbox = c.create_sandbox()
    url = served.url.replace("http", "ws") + f"/v1/sandboxes/{sandbox.id}/stream"
    head = {"authorization": f"Bearer {served.key}"}
    piece, count = b"i" * (64 << 10), 60
    with websockets.sync.client.connect(url, additional_headers=head, proxy=None) as socket:
        socket.send(json.dumps({"start": {"command": "echo here; sleep 2; wc -c", "stdin_open": True}}))
        for number in range(count):
            socket.send((number * len(piece)).to_bytes(8, "big") + piece)
        socket.send(json.dumps({"stdin_end": count * len(piece)}))
        out, event = b"", {}
        while event.get("event") != "ended":
            message = socket.recv(timeout=60)
            event = {} if isinstance(message, bytes) else json.loads(message)
            out += message[9:] if isinstance(message, bytes) else b""
    assert out == f"here\n{count * len(piece)}\n".encode()


def test_signals_and_the_end_of_trees(sandbox: Any) -> None:
    process = sandbox.start("trap 'echo hurt; exit 7' TERM; echo ready; while :; do sleep 0.1; done")
    for event in process.events():
        if isinstance(event, api.Output) and event.data == b"ready\n":
            assert process.signal("TERM") == 1
    assert process.wait(20).exit_code == 7
    assert process.wait(20).stdout == "ready\nhurt\n"
    running = sandbox.start("sleep 1000")
    assert running.id in [each.id for each in sandbox.list_commands()]
    with pytest.raises(api.WaitTimeout):
        running.wait(0.2)
    running.forget()
    with pytest.raises((api.NotFound, api.Expired)):
        running.poll()


def test_ids_never_act_twice(sandbox: Any) -> None:
    first = sandbox.exec("echo x >> /tmp/runs; cat /tmp/runs")
    again = sandbox.exec("echo x >> /tmp/runs; cat /tmp/runs", id=first.id)
    assert again.stdout == first.stdout == "x\n" and sandbox.exec("cat /tmp/runs").stdout == "x\n"
    with pytest.raises(api.IdReused):
        sandbox.exec("echo y >> /tmp/runs", id=first.id)
    session, epoch, _ = first.id.split(".")
    for _ in range(3):
        sandbox.exec("true")
    with pytest.raises((api.Expired, api.ApiError)):
        sandbox.attach(f"{session}.{epoch}.999999").poll()


def test_shells_keep_their_state(sandbox: Any) -> None:
    with sandbox.shell(cwd="/tmp", env={"E": "1"}) as shell:
        assert shell.exec("pwd; echo $E").stdout == "/tmp\n1\n"
        shell.exec("cd /usr; A='x y'; f() { echo f:$1; }; export B=2")
        assert shell.exec('pwd; echo "$A"; f 1; env | grep ^B=').stdout == "/usr\nx y\nf:1\nB=2\n"
        assert list(shell.stream("echo a; echo b").lines()) == ["a", "b"]
        slow = shell.exec("echo begun; sleep 100", timeout=0.5)
        assert slow.timed_out and slow.stdout == "begun\n"
        assert [each["ended"] for each in sandbox.list_shells()] == [False]
        ended = shell.exec("exit 5")
        assert (ended.exit_code, ended.shell_ended) == (5, True)
        late = shell.exec("true")
        assert late.outcome == "not-started" and "shell" in str(late.error)
    assert all(each["ended"] for each in sandbox.list_shells())


BASH = ["bash", "--norc", "--noprofile", "-i"]


def test_a_terminal(sandbox: Any) -> None:
    with sandbox.terminal(BASH, rows=30, columns=100, env={"PS1": "> ", "TERM": "dumb"}) as terminal:
        terminal.read_until("> ")
        terminal.write("stty size; test -t 0 && echo is-a-'tty'\n")
        assert b"30 100" in terminal.read_until("is-a-tty\r\n")
        terminal.resize(5, 6)
        terminal.write("stty size\n")
        terminal.read_until("5 6")
        # Said by the program that is to be interrupted: it has the terminal by then.
        terminal.write("sh -c 'echo be\"\"gun; exec sleep 100'\n")
        terminal.read_until("begun\r\n")
        terminal.write(b"\x03")
        terminal.write("exit 4\n")
        assert terminal.wait(20).exit_code == 4


def test_a_terminal_without_a_websocket(sandbox: Any) -> None:
    process = sandbox.start("stty size; read x; echo got $x", rows=9, columns=8, stdin_open=True)
    process.write("hi\n")
    assert process.wait(20).stdout.replace("\r", "").endswith("got hi\n")


def test_files(sandbox: Any, tmp_path: Path) -> None:
    stat = sandbox.upload_content("héllo", "/data/a/b.txt", mode=0o640)
    assert (stat.kind, stat.size, stat.mode) == ("file", 6, "0640")
    assert sandbox.download_content("/data/a/b.txt") == "héllo".encode()
    assert sandbox.download_content("/data/a/b.txt", 1, 3) == "é".encode()
    assert sandbox.download_content("/data/a/b.txt", 6) == b""
    odd = b"/data/\xff \n&?#%"
    sandbox.upload_content(b"odd", odd)
    assert sandbox.download_content(odd) == b"odd" and sandbox.exists(odd)
    with pytest.raises(api.Conflict):
        sandbox.upload_content("x", "/data/a/b.txt", create_new=True)
    with pytest.raises(api.NotFound):
        sandbox.upload_content("x", "/nowhere/at/all", parents=False)
    (tmp_path / "s.sh").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "s.sh").chmod(0o755)
    sandbox.upload_file(tmp_path / "s.sh", "/data/s.sh")
    assert sandbox.exec(["/data/s.sh"]).stdout == "ran\n"
    assert sandbox.download_file("/data/s.sh", tmp_path / "back") == 19
    assert (tmp_path / "back").read_text() == "#!/bin/sh\necho ran\n"
    sandbox.make_folder("/data/deep/er", mode="0700")
    assert sandbox.stat("/data/deep/er").mode == "0700"
    sandbox.move("/data/a/b.txt", "/data/deep/c.txt")
    assert not sandbox.exists("/data/a/b.txt")
    sandbox.exec("ln -s nowhere /data/link; mkfifo /data/pipe", check=True)
    kinds = {entry.name: entry.kind for entry in sandbox.list_files("/data")}
    assert (kinds["link"], kinds["pipe"], kinds["deep"], kinds["s.sh"]) == ("link", "fifo", "folder", "file")
    assert {entry["path"] for entry in sandbox.list_files("/data/deep", depth=2)} == {"c.txt", "er"}
    assert sandbox.stat("/data/link", follow=False).target == "nowhere"
    assert sandbox.remove("/data/link") and not sandbox.remove("/data/link", missing_ok=True)
    with pytest.raises(api.NotFound):
        sandbox.remove("/data/link")
    with pytest.raises(api.Conflict):
        sandbox.remove("/data")
    # As late as a file system can say.
    sandbox.exec("touch -d @9223372036854775.9 /data/late", check=True)
    assert sandbox.stat("/data/late").size == 0 and "late" in [entry.name for entry in sandbox.list_files("/data")]
    assert sandbox.remove("/data", recursive=True)
    with pytest.raises(api.NotFound):
        sandbox.list_files("/data")


def test_large_files_both_ways(sandbox: Any, tmp_path: Path) -> None:
    data = os.urandom(1 << 20) * 24
    (tmp_path / "in").write_bytes(data)
    assert sandbox.upload_file(tmp_path / "in", "/tmp/big").size == len(data)
    assert sandbox.download_file("/tmp/big", tmp_path / "out") == len(data)
    assert (tmp_path / "out").read_bytes() == data
    with pytest.raises(ValueError):
        sandbox.download_content("/tmp/big", bytes_max=1000)


def test_a_full_disk_is_told_as_such(c: Any) -> None:
    small = c.create_sandbox(disk="64MiB")
    with pytest.raises(api.DiskFull):
        small.upload_content(os.urandom(1 << 20) * 100, "/big")
    assert small.exec("echo still here").stdout == "still here\n"


def test_patches(sandbox: Any) -> None:
    sandbox.upload_content("one\ntwo\nthree\n", "/p/f.txt")
    patch = "--- a/f.txt\n+++ b/f.txt\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
    assert sandbox.apply_patch(patch, root="/p", dry_run=True).files[0].path.endswith("f.txt")
    patched = sandbox.apply_patch(patch, root="/p")
    assert patched.success and patched["files"][0].hunks == 1
    assert sandbox.download_content("/p/f.txt") == b"one\n2\nthree\n"
    with pytest.raises(api.PatchRejected):
        sandbox.apply_patch(patch, root="/p")
    assert sandbox.apply_patch(patch, root="/p", reverse=True).success


SERVER = "cd /srv/www && exec python3 -m http.server 8000 --bind 127.0.0.1"


def wait_for_port(sandbox: Any, port: int) -> None:
    sandbox.exec(f"for i in $(seq 100); do (: </dev/tcp/127.0.0.1/{port}) && exit 0; sleep 0.1; done; exit 1", check=True)


def test_ports(sandbox: Any) -> None:
    sandbox.upload_content("hello from inside", "/srv/www/a b.txt")
    sandbox.start(SERVER, timeout=None)
    wait_for_port(sandbox, 8000)
    answer = httpx.get(sandbox.url(8000, "/a%20b.txt"), headers=sandbox.headers)
    assert answer.text == "hello from inside"
    assert httpx.get(sandbox.url(8000, "/missing"), headers=sandbox.headers).status_code == 404
    assert httpx.get(sandbox.url(8001), headers=sandbox.headers).status_code == 502
    with sandbox.forward(8000) as forwarder:
        for _ in range(3):
            with socket.create_connection(tuple(forwarder.address), timeout=20) as peer:
                peer.sendall(b"GET /a%20b.txt HTTP/1.0\r\n\r\n")
                got = b""
                while piece := peer.recv(65536):
                    got += piece
            assert got.endswith(b"hello from inside")


def test_forks_and_checkpoints(c: Any) -> None:
    sandbox = c.create_sandbox(labels={"kind": "first"})
    sandbox.upload_content("kept", "/kept")
    twins = sandbox.fork(2, labels={"kind": "twin"})
    assert len({sandbox.id, *(twin.id for twin in twins)}) == 3
    twins[0].exec("echo changed > /kept", check=True)
    assert [each.download_content("/kept") for each in (sandbox, *twins)] == [b"kept", b"changed\n", b"kept"]
    assert {each.labels.get("kind") for each in twins} == {"twin"}
    checkpoint = sandbox.checkpoint(labels={"of": "test"})
    assert checkpoint.id in [each.id for each in c.list_checkpoints({"of": "test"})]
    assert c.get_checkpoint(checkpoint.id).sandbox_id == sandbox.id
    sandbox.delete()
    made = c.create_sandbox(checkpoint=checkpoint.id)
    assert made.download_content("/kept") == b"kept"
    c.delete_checkpoint(checkpoint.id)
    with pytest.raises(api.NotFound):
        c.get_checkpoint(checkpoint.id)
    assert made.exec("cat /kept").stdout == "kept"


#: Says how many processes can be had.
FORKS = """
import os, time
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            time.sleep(2)
            os._exit(0)
        count += 1
except OSError:
    pass
print(count)
"""


def test_a_request_of_a_name_is_one_request(c: Any, served: Any) -> None:
    one, other = c.create_sandbox(files_max=4321, processes_max=77), c.create_sandbox()
    name = {"idempotency-key": secrets.token_hex(32)}

    def asked(sandbox: Any, what: str, body: Any = None) -> httpx.Response:
        return daemon.raw("POST", f"{served.url}/v1/sandboxes/{sandbox.id}/{what}", served.key, json=body or {}, headers=name)

    first = asked(one, "checkpoints")
    assert first.status_code == 201 and asked(one, "checkpoints").json() == first.json()
    for again in (asked(other, "checkpoints"), asked(one, "checkpoints", {"labels": {"a": "b"}})):
        assert (again.status_code, again.json()["code"]) == (409, "id-reused")
    c.delete_checkpoint(first.json()["id"])
    # What it took stays known, though it is deleted; the name stands for no other kind of request.
    assert asked(one, "checkpoints").json() == first.json()
    assert asked(one, "fork").status_code == 409
    # What a sandbox is bounded by holds for its forks.
    name = {"idempotency-key": secrets.token_hex(16)}
    fork = asked(one, "fork").json()["sandboxes"][0]
    assert asked(one, "fork").json()["sandboxes"][0]["id"] == fork["id"]
    made = c.get_sandbox(fork["id"])
    assert 20 < int(made.exec(["python3", "-c", FORKS]).stdout) < 77
    made.delete()
    # Forks have no names of their own that a client's could be mistaken for.
    name = {"idempotency-key": name["idempotency-key"] + "-0"}
    other = daemon.raw("POST", f"{served.url}/v1/sandboxes", served.key, json={}, headers=name)
    assert other.status_code == 201 and other.json()["id"] != fork["id"]
    c.delete_sandbox(other.json()["id"])


def test_lists_by_label_state_and_name(c: Any) -> None:
    mark = f"m{time.monotonic_ns()}"
    made = [c.create_sandbox(labels={"mark": mark, "number": str(number)}, name=f"{mark}-{number}") for number in range(3)]
    assert [each.id for each in c.list_sandboxes({"mark": mark})] == [each.id for each in reversed(made)]
    assert [each.id for each in c.list_sandboxes({"mark": "", "number": "1"}, name=f"{mark}-1")] == [made[1].id]
    assert len(c.list_sandboxes({"mark": mark}, limit=2)) == 2
    made[0].update(labels={"other": "x"}, lifetime_s=600, idle_s=100)
    assert made[0].labels == {"other": "x"} and made[0].info.idle_s == 100
    assert abs(made[0].info.expires_ms / 1000 - time.time() - 600) < 30
    made[1].delete()
    assert [each.id for each in c.list_sandboxes({"mark": mark}, state="running")] == [made[2].id]
    made[1].delete()


def test_a_sandbox_ends_when_nobody_speaks_to_it(c: Any) -> None:
    kept, left = c.create_sandbox(idle_s=3), c.create_sandbox(idle_s=3)
    kept.start_heartbeat(1)
    assert left.wait("ended", 30).ended
    assert kept.exec("echo alive").stdout == "alive\n"
    kept.stop_heartbeat()
    with pytest.raises((api.Gone, api.NotFound)):
        left.exec("true")
    brief = c.create_sandbox(lifetime_s=2)
    brief.start_heartbeat(0.5)
    assert brief.wait("ended", 30).state == "ended"


def test_what_a_sandbox_begins_with(c: Any) -> None:
    sandbox = c.create_sandbox(
        files={"/opt/a.txt": "text", "/opt/run": {"text": "#!/bin/sh\necho run", "mode": "0755"}}, env={"V": "1"},
        setup=["echo one > /opt/one", "echo two > /opt/two"], workdir="/opt", cpu=1, memory="512MiB", user="nobody",
    )  # fmt: skip
    assert sandbox.exec("./run; cat a.txt one two; echo $V; id -un").stdout == "run\ntextone\ntwo\n1\nnobody\n"
    assert (sandbox.info.cpu, sandbox.info.memory, sandbox.info.workdir) == (1, 512 << 20, "/opt")
    with pytest.raises(api.SandboxFailed) as caught:
        c.create_sandbox(setup="echo why >&2; exit 9")
    assert caught.value.code


def test_mistakes_are_told_with_a_hint(c: Any, served: Any) -> None:
    sandbox = c.create_sandbox()
    with pytest.raises(api.Invalid) as caught:
        c.create_sandbox(memory="lots")
    assert "memory" in str(caught.value)
    answer = daemon.raw("POST", f"{served.url}/v1/sandboxes", served.key, json={"imag": "host"})
    assert answer.status_code == 422 and "image" in answer.text
    with pytest.raises(api.NotFound) as missing:
        sandbox.download_content("/no/such/file")
    assert missing.value.request_id
    with pytest.raises(api.NotFound):
        c.get_sandbox("aaaaaaaaaaaa")
    assert c.health()["status"] == "ok" and c.ready() and c.key().name == "tests"
    assert c.resources().used["sandboxes"] >= 1 and c.resources().cpu_total >= 1
