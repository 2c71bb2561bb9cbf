"""The HTTP client of a schema registry: Confluent's API for schemas and their ids."""

from __future__ import annotations

import base64
import os
import ssl
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from threading import Thread
from typing import Any, Final, TypeVar
from urllib.error import HTTPError
from urllib.request import HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import msgspec

from tailrace.core.errors import RegistryError

_TIMEOUT_S: Final = 10.0
_MOST_BYTES: Final = 1 << 22
_MOST_TEXT: Final = 300
_ATTEMPTS: Final = 3
_PAUSE_S: Final = 0.5
_TYPE: Final = "application/vnd.schemaregistry.v1+json"
T = TypeVar("T")


class Schema(msgspec.Struct, omit_defaults=True, rename="camel"):
    """A schema as a registry gives it. ``id`` is that under a subject."""

    schema: str
    schema_type: str = "AVRO"
    id: int = 0
    references: list[Any] = []


class _Id(msgspec.Struct):
    id: int


class _NoRedirects(HTTPRedirectHandler):
    """What a registry answers with another address is an error: it could name any server that this one can reach."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        del req, fp, code, msg, headers, newurl


def _in_time(ask: Callable[[], T]) -> T:
    """What ``ask`` returns or raises. Raises OSError if it takes too long, whatever takes so long: its thread is then left alone."""
    found = Future[T]()

    def asking() -> None:
        try:
            found.set_result(ask())
        except Exception as error:  # noqa: BLE001  # raised below
            found.set_exception(error)

    Thread(target=asking, daemon=True).start()
    try:
        return found.result(_TIMEOUT_S)
    except TimeoutError:
        raise OSError(f"its answer takes longer than {_TIMEOUT_S:.0f} s") from None


def _text(error: HTTPError) -> str:
    """The beginning of what a registry says of an error, in one line."""
    said = ""
    with suppress(OSError, HTTPException), error:
        said = error.read1(1 << 16).decode(errors="replace")
    return " ".join("".join(one if one.isprintable() else " " for one in said).split())[:_MOST_TEXT]


class Client:
    """Asks a registry, each question up to three times. ``urls``: its addresses, with commas.

    Settings: ``TAILRACE_REGISTRY_USER`` and ``_PASSWORD`` (basic authentication), ``_CA`` (a file of certificates to trust).
    """

    def __init__(self, urls: str) -> None:
        self._urls = [one.strip().rstrip("/") for one in urls.split(",")]
        if not all(one.startswith(("http://", "https://")) and "@" not in one for one in self._urls):
            raise RegistryError(
                "the address of the schema registry is missing or wrong",
                hint="Set TAILRACE_REGISTRY_URL to https://host:port; user and password are TAILRACE_REGISTRY_USER and "
                "TAILRACE_REGISTRY_PASSWORD.",
            )
        self._where = f"the schema registry {self._urls[0]}"
        context = ssl.create_default_context(cafile=os.environ.get("TAILRACE_REGISTRY_CA") or None)
        self._open = build_opener(HTTPSHandler(context=context), _NoRedirects()).open
        user, password = (os.environ.get(f"TAILRACE_REGISTRY_{one}", "") for one in ("USER", "PASSWORD"))
        self._login = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}" if user else ""

    def schema(self, id_: int) -> Schema:
        """The schema of an id. RegistryError also if the registry does not know it, or if it refers to others."""
        hint = f"Is it the registry of the producer? If such records are garbage, write null to {id_}.json among the schemas."
        found = self._ask(f"does not give the schema {id_} of a record", hint, f"/schemas/ids/{id_}", Schema)
        if found.references:
            raise RegistryError(f"the schema {id_} of a record refers to others, which is not supported")
        return found

    def own(self, subject: str, kind: str, schema: str, *, register: bool) -> Schema:
        """A schema with its id under a subject, where it is registered, or looked up."""
        what = f"{'refuses' if register else 'does not have'} the schema of the subject {subject!r}"
        hint = "Make the change compatible (a new field needs a default), or register the schema."
        path = f"/subjects/{subject}{'/versions' if register else ''}"
        found = self._ask(what, hint, path, _Id, msgspec.json.encode({"schemaType": kind, "schema": schema}))
        return Schema(schema, kind, found.id)

    def _answer(self, request: Request) -> bytes:
        """What it answers. Raises HTTPError with what it says."""
        try:
            with self._open(request, timeout=_TIMEOUT_S) as answer:
                content: bytes = answer.read(_MOST_BYTES + 1)
                if len(content) > _MOST_BYTES:
                    raise OSError(f"its answer is longer than {_MOST_BYTES} bytes")
                return content
        except HTTPError as error:
            error.msg = _text(error)
            raise

    def _ask(self, refusal: str, hint: str, path: str, type: type[T], content: bytes | None = None) -> T:
        why: object = ""
        for attempt in range(max(_ATTEMPTS, len(self._urls))):
            time.sleep(_PAUSE_S if attempt else 0)
            url = self._urls[attempt % len(self._urls)] + path
            request = Request(url, content, {"Content-Type": _TYPE, "Accept": _TYPE})  # noqa: S310  # the scheme was checked
            if self._login:
                request.add_unredirected_header("Authorization", self._login)
            try:
                return msgspec.json.decode(_in_time(partial(self._answer, request)), type=type)
            except HTTPError as error:
                why = f"{error.code} {error.msg}"
                if error.code < 500 and error.code != HTTPStatus.TOO_MANY_REQUESTS:
                    raise RegistryError(f"{self._where} {refusal}: {why}", hint=hint) from None
            except (OSError, HTTPException, msgspec.MsgspecError) as error:
                why = getattr(error, "reason", error)
        hint = "No record is at fault. Start again when it answers."
        raise RegistryError(f"{self._where} does not answer: {why}", hint=hint)
