"""Create a sandbox, run, stream, copy files, fork. Wants ESPALIER_URL and ESPALIER_API_KEY."""

from espalier import SandboxClient

with SandboxClient() as client:
    with client.create_sandbox("host") as sandbox:
        sandbox.upload_content("print(6 * 7)", "/app/answer.py")
        print(sandbox.exec("python3 answer.py", cwd="/app").stdout, end="")
        for line in sandbox.stream("for i in 1 2 3; do echo $i; sleep 0.2; done").lines():
            print(line)
        twin = sandbox.fork()[0]
        twin.download_file("/app/answer.py", "answer.py")
