"""A shell that keeps its state, a program that is talked to, and a server inside that is asked from here."""

import urllib.request

from espalier import SandboxClient

with SandboxClient() as client:
    with client.create_sandbox("host", network="loopback") as sandbox:
        with sandbox.shell(cwd="/tmp") as shell:
            shell.exec("name=world; greet() { echo hello $1; }")
            print(shell.exec("greet $name").stdout, end="")

        process = sandbox.start(["python3", "-c", "print(sum(int(line) for line in open(0)))"], stdin_open=True)
        process.write("20\n")
        process.write("22\n", end=True)
        print(process.wait().stdout, end="")

        sandbox.upload_content("served from inside\n", "/srv/index.html")
        sandbox.start("exec python3 -m http.server 8000 --bind 127.0.0.1", cwd="/srv", timeout=None)
        sandbox.exec("until (: < /dev/tcp/127.0.0.1/8000) 2>/dev/null; do sleep 0.1; done", timeout=30, check=True)
        request = urllib.request.Request(sandbox.url(8000, "/index.html"), headers=sandbox.headers)
        print(urllib.request.urlopen(request).read().decode(), end="")
