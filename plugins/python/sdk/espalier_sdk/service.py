"""Services that the engine answers itself, such as mock web applications, for rewards and judges."""

import json
from dataclasses import dataclass
from typing import Any, Literal

from . import convert, wit
from .failures import Invalid

#: Characters of an answer in an error.
_SHOWN_MAX = 500


@dataclass(frozen=True)
class Response:
    """What a service answered."""

    #: Of HTTP: 200, 422 ...
    status: int
    #: Media type of the body.
    content_type: str
    body: bytes
    extra: Any = None

    @property
    def text(self) -> str:
        """The body as UTF-8, with replacement characters."""
        return self.body.decode("utf-8", "replace")


class Service:
    """A service of the rollout, by its name in the task's `services`, asked with the engine's key::

    cart = Service("shop").get("/go")["state_diff"]
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def get(self, path: str) -> Any:
        """What `GET` of a path answers, as JSON. Errors: ``Invalid`` also for a status of 400 or more, with what the service says."""
        return self._json(path, self.request("GET", path))

    def post(self, path: str, body: Any = None) -> Any:
        """What `POST` to a path answers, as JSON. Errors as those of `get`."""
        text = convert.json_out({} if body is None else body, "body")
        return self._json(path, self.request("POST", path, text))

    def request(self, method: Literal["GET", "POST"], path: str, body: bytes | str = b"") -> Response:
        """The answer as it is, whatever its status."""
        asked = (convert.text_out(self.name, "name"), convert.text_out(method, "method"), convert.text_out(path, "path"))
        made = wit.call(wit.services.request, *asked, body.encode() if isinstance(body, str) else bytes(body))
        return Response(made.status, made.content_type, bytes(made.body), convert.loaded(made.extra))

    def _json(self, path: str, response: Response) -> Any:
        shown = response.text[:_SHOWN_MAX]
        if response.status >= 400:
            raise Invalid(f"{self.name}{path}: status {response.status}: {shown}")
        try:
            return json.loads(response.text)
        except json.JSONDecodeError as error:
            raise Invalid(f"{self.name}{path}: {error}: {shown}") from None
