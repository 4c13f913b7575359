"""Names the folders that the library under test is imported from, and writes down where its modules came from."""

import json
import os
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
MODULES_MAX = 20000

with open(os.path.join(FOLDER, "roots.json")) as file:
    SAID = json.load(file)
NAMES = set(SAID["modules"])

# Programs that tests start look for modules as they always do.
os.environ.pop("PYTHONSAFEPATH", None)
sys.path[:] = SAID["roots"] + [path for path in sys.path if path and path not in SAID["roots"]]


def is_own(name):
    parts = name.split(".")
    return any(".".join(parts[:length]) in NAMES for length in range(1, len(parts) + 1))


def pytest_collection_finish(session):
    origins = {}
    for name, module in sorted(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        # One module may stand for another: that one came from where it lies.
        if is_own(name) and getattr(spec, "name", None) == name and isinstance(origin, str) and os.path.isabs(origin):
            origins[name] = os.path.realpath(origin)
        if len(origins) == MODULES_MAX:
            break
    path = os.path.join(FOLDER, "origins-%d.json" % os.getpid())
    with open(path + ".part", "w") as file:
        json.dump(origins, file)
    os.replace(path + ".part", path)
