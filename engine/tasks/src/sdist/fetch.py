"""Puts the source archive of a release into a folder: from the package index that pip is set up with, and without running anything
of the package, as `pip download` would. Prints the file's name; exit code 3: there is none."""

import hashlib
import os
import sys

from pip._internal.commands import create_command

try:
    from pip._vendor.packaging.version import Version
except ImportError:
    Version = str


def same(one, other):
    """Whether two versions are one: 1.0 and 1.0.0 are."""
    try:
        return Version(str(one)) == Version(str(other))
    except ValueError:
        return str(one) == str(other)


name, version, folder = sys.argv[1:]
command = create_command("download")
options, _ = command.parse_args(["--no-deps", "--no-binary", ":all:", "--quiet", name])
with command.main_context():
    session = command.get_default_session(options)
    finder = command._build_package_finder(options, session)
    links = [
        candidate.link
        for candidate in finder.find_all_candidates(name)
        if not candidate.link.is_wheel and same(candidate.version, version)
    ]
    sources = [link for link in links if link.filename.endswith(".tar.gz")]
    if not sources:
        print(", ".join(link.filename for link in links) or "no release of that version", file=sys.stderr)
        sys.exit(3)
    link = sources[0]
    answer = session.get(link.url_without_fragment)
    answer.raise_for_status()
    if link.hash_name in hashlib.algorithms_guaranteed:
        found = hashlib.new(link.hash_name, answer.content).hexdigest()
        if found != link.hash:
            sys.exit("%s: its %s is %s, the index says %s" % (link.filename, link.hash_name, found, link.hash))
    path = os.path.join(folder, link.filename)
    with open(path + ".part", "wb") as file:
        file.write(answer.content)
    os.replace(path + ".part", path)
    print(link.filename)
