"""Start something long, leave, and come back to it from another client: by the sandbox's id and the command's."""

from espalier import SandboxClient

with SandboxClient(auto_cleanup=False) as client:
    sandbox = client.create_sandbox("host", lifetime_s=600, labels={"example": "come-back"})
    process = sandbox.start("for i in 1 2 3 4 5; do echo step $i; sleep 0.2; done")
    remembered = sandbox.id, process.id

with SandboxClient() as later:
    sandbox_id, command_id = remembered
    with later.get_sandbox(sandbox_id) as sandbox:
        for line in sandbox.attach(command_id).events().lines():
            print(line)
        print("exit code", sandbox.get_job(command_id).exit_code)
