"""The images that rows name by digest: from the groups themselves, or from the folder beside the export."""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Dict, Optional, Union

from .records import Group

ENDINGS = ("png", "jpg", "webp")


class ImageMissing(LookupError):
    """An image that a row names is neither in its group nor in the folder beside the export."""


class Images:
    """Reads the images of an export that is at `path`: `images(digest)` gives the bytes of a PNG, JPEG or WebP file.

    Those of the folder `PATH.images` (`espalier export --images beside`, the default) are there at once; those of groups
    (`--images embed`) once `add` was called with the group.
    """

    def __init__(self, path: Union[str, "os.PathLike[str]"], folder: Optional[Union[str, "os.PathLike[str]"]] = None) -> None:
        self.folder = Path(folder) if folder is not None else Path(f"{os.fspath(path)}.images")
        self.embedded: Dict[str, bytes] = {}

    def add(self, group: Group) -> None:
        """Takes the images that a group carries, in the place of those of the group before."""
        self.embedded = embedded(group)

    def __call__(self, digest: str) -> bytes:
        """The bytes of an image. Raises `ImageMissing`."""
        if digest in self.embedded:
            return self.embedded[digest]
        for ending in ENDINGS:
            path = self.folder / f"{digest}.{ending}"
            if path.is_file():
                return path.read_bytes()
        raise ImageMissing(f"image {digest} is neither in the group nor in {self.folder}")


def embedded(group: Group) -> Dict[str, bytes]:
    """The images that a group carries, by digest."""
    return {digest: _bytes(one["data"]) for digest, one in group.raw.get("image_data", {}).items()}


def _bytes(data: Union[str, bytes]) -> bytes:
    return data if isinstance(data, bytes) else base64.b64decode(data, validate=True)
