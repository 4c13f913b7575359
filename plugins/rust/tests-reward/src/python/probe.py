"""What the tests of a task are, asked of a sandbox that no agent has touched: which files there are, where modules are imported from,
and how pytest is set up. Loaded as a plugin of pytest, and as `sitecustomize` of every interpreter that the tests' command starts.
Writes a report beside itself, and ends the process before a test runs."""

import json
import os
import re
import sys

FOLDER = os.path.dirname(os.path.abspath(__file__))
FILES_MAX = 200000
READ_MAX = 5000
BYTES_MAX = 1 << 20
SKIPPED = {".git", ".hg", ".svn", "node_modules", "__pycache__"}
# `from a.b import c`, `import a.b`, `import a as b, c`
IMPORT = re.compile(r"^[ \t>.]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+(\w+(?:[\w., \t])*?)[ \t\r]*(?:$|[#;]))", re.M)

# `from .a.b import (c, d)`, `import a.b as x, c`
FROM = re.compile(r"^[ \t>]*from[ \t]+(\.*[\w.]*)[ \t]+import[ \t]*(\([^)]*\)|[^\n#;]*)", re.M)
PLAIN = re.compile(r"^[ \t>]*import[ \t]+([^\n#;]+)", re.M)
QUOTED = re.compile(r"[\"']([A-Za-z_]\w*(?:\.\w+)*)[\"']")
NAMES_MAX = 2000


def workdir():
    return os.path.realpath(os.environ.get("ESPALIER_WORKDIR") or os.getcwd())


def real(path):
    return os.path.realpath(path or os.getcwd())


def tree(top):
    """Files and links below the working folder, from there."""
    found = []
    for folder, folders, files in os.walk(top):
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = [name for name in folders if name not in SKIPPED and name not in links]
        found += [os.path.relpath(os.path.join(folder, name), top) for name in files + links]
        if len(found) > FILES_MAX:
            raise SystemExit("more than %d files in %s" % (FILES_MAX, top))
    return found


def text(path):
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(BYTES_MAX)
    except OSError:
        return ""


def names_in(code):
    found = set()
    for one, several in IMPORT.findall(code):
        parts = [one] if one else [part.split()[0].split(".")[0] for part in several.split(",") if part.split()]
        found.update(part for part in parts if part)
    return found


def imported(top, files):
    """The first parts of the names that the tree's own code imports."""
    found = {}
    for path in [path for path in files if path.endswith(".py")][:READ_MAX]:
        for name in names_in(text(os.path.join(top, path))):
            found.setdefault(name, set()).add(path.split(os.sep)[0].split(".")[0])
    # A folder that imports only itself is not what others import.
    return sorted(name for name, users in found.items() if users - {name})


def listed(several):
    """The names in `a.b as x, c`."""
    words = [part.split() for part in several.strip("()").replace("\\\n", " ").split(",")]
    return [part[0] for part in words if part and re.match(r"[\w.]+$", part[0])]


def uses(top, files):
    """The modules that each file of code may speak of."""
    known = {re.split(r"[/.]", path)[0] for path in files} | {re.split(r"[/.]", path)[0] for path in inner(files)}
    found = {}
    for path in [path for path in files if path.endswith(".py")][:READ_MAX]:
        code = text(os.path.join(top, path))
        names = set()
        for base, several in FROM.findall(code):
            names.update(base + ("" if base.endswith(".") else ".") + name for name in listed(several) or [""])
        for several in PLAIN.findall(code):
            names.update(listed(several))
        quoted = {name for name in QUOTED.findall(code) if name.split(".")[0] in known}
        found[path] = {"imported": sorted(names)[:NAMES_MAX], "quoted": sorted(quoted)[:NAMES_MAX]}
    return found


def inner(files):
    """Paths in the folders in which a tree keeps its modules."""
    return [path.split("/", 1)[1] for path in files if path.startswith(("src/", "lib/"))]


def standard():
    names = set(getattr(sys, "stdlib_module_names", ())) | set(sys.builtin_module_names)
    if not hasattr(sys, "stdlib_module_names"):
        names |= {name.split(".")[0] for name in os.listdir(os.path.dirname(os.__file__))}
    return sorted(names)


def mapped(top, files):
    """What finders of editable installations know: modules by name, with where they lie."""
    plain = ("BuiltinImporter", "FrozenImporter", "PathFinder", "AssertionRewritingHook", "Ending")
    names = {part for path in files if path.endswith(".py") for part in re.split(r"[/.]", path)[:-1]}
    found = {}
    for finder in sys.meta_path:
        kind = finder if isinstance(finder, type) else type(finder)
        if kind.__name__ in plain or kind.__module__.split(".")[0] in ("six", "_distutils_hack"):
            continue
        known = getattr(sys.modules.get(kind.__module__), "MAPPING", None)
        for name in sorted(names) + sorted(known if isinstance(known, dict) else ()):
            try:
                spec = finder.find_spec(name, None)
                places = list(spec.submodule_search_locations or [spec.origin]) if spec else []
            except Exception:
                continue
            places += [known[name]] if isinstance(known, dict) and name in known else []
            found.setdefault(name, []).extend(real(place) for place in places if isinstance(place, str))
    return {name: sorted(set(places)) for name, places in found.items() if places}


def needed():
    """Names of the modules without which pytest is not up: they would decide before any check."""
    own = ("__main__", "espalier_probe", "sitecustomize")
    return sorted({name.split(".")[0] for name in sys.modules}.difference(own))


def report(**more):
    top = workdir()
    files = tree(top)
    own = [path for path in sys.path if real(path) != real(FOLDER)]
    said = {
        "path": [real(path) for path in own],
        "files": files,
        "imported": imported(top, files),
        "uses": uses(top, files),
        "standard": standard(),
        "mapped": mapped(top, files),
    }
    said.update(more)
    name = os.path.join(FOLDER, "report-%d.json" % os.getpid())
    with open(name + ".part", "w", encoding="utf-8", errors="replace") as file:
        file.write(json.dumps(said).encode("utf-8", "replace").decode())
    os.replace(name + ".part", name)


def leave(code):
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def words(config, name):
    try:
        return [str(word) for word in config.getini(name)]
    except (KeyError, ValueError):
        return []


def before_conftests(early_config):
    config = early_config
    rootdir = getattr(config, "rootpath", None) or getattr(config, "rootdir", None)
    inifile = getattr(config, "inipath", None) or getattr(config, "inifile", None)
    given = config.known_args_namespace
    confcutdir = getattr(given, "confcutdir", None)
    for folder in reversed(words(config, "pythonpath")):
        sys.path.insert(0, folder)
    report(
        needed=needed(),
        pytest={
            "rootdir": real(str(rootdir)),
            "inifile": real(str(inifile)) if inifile else None,
            "confcutdir": real(str(confcutdir)) if confcutdir else None,
            "python_files": words(config, "python_files"),
        },
    )
    leave(0)


class Ending:
    """Ends the process when a runner built on unittest comes up: what it put into the path is there by then."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "unittest":
            try:
                report()
            finally:
                leave(0)


def as_sitecustomize():
    """The sandbox's own `sitecustomize` runs as it would."""
    from importlib.machinery import PathFinder

    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if real(path) != real(FOLDER)])
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        spec.loader.exec_module(module_from_spec(spec))
    if os.environ.get("ESPALIER_PROBE") == "unittest":
        sys.meta_path.insert(0, Ending)


if __name__ == "__main__":
    report()
elif __name__ == "sitecustomize":
    as_sitecustomize()
else:
    import pytest

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(early_config):
        # Around all others: pytest imports the categories of `filterwarnings` in one of them, and those may be the library's.
        before_conftests(early_config)
        yield
