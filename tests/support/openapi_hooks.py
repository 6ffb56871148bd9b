"""Hooks of Schemathesis, which imports this module in a process with the keys of a cluster in its environment.

They sign requests, make the replies of the document strict, undo what would stop the cluster, and allow what no schema
can say.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any

import schemathesis
from schemathesis import Case, HookContext, Response
from schemathesis.auths import GLOBAL_AUTH_STORAGE
from schemathesis.core.failures import AcceptedNegativeData, Failure
from schemathesis.openapi.checks import (
    AllowHeaderMismatch,
    MissingHeaderNotRejected,
    MissingHeaders,
    RejectedPositiveData,
    UndefinedContentType,
)

from tests.support.signed_requests import Signature, send


@dataclass(frozen=True)
class Exemption:
    """A failure that is none. ``operations``, and ``text`` of the URL and the problem's detail, are patterns."""

    operations: str
    failures: tuple[type[Failure], ...]
    text: str
    reason: str


_REFUSED = (RejectedPositiveData,)
_ALL = ".*"
EXEMPTIONS = (
    # ---- what one field may be depends on another, or on what is stored ----
    Exemption(_ALL, _REFUSED, r"contradicts|differs between query and body", "two spellings of one field must agree"),
    Exemption(
        r"DELETE /folders|GET /events/background-task|POST .*/shutdown-service|GET .*/(tcp|http)proxy|GET .*/pty",
        _REFUSED,
        r"^(id|task_id|service_name|app): (required|missing)",
        "one of two spellings of a field is required",
    ),
    Exemption(r"POST /session/\{s\}", _REFUSED, r"^(runId|code): ", "what a step takes depends on its mode"),
    Exemption(r"POST /manager/announcement", _REFUSED, r"^message: required", "only if it is enabled"),
    Exemption(r"POST /auth/update-password", _REFUSED, r"The new passwords differ", "two fields must be equal"),
    Exemption(
        r"(POST|PATCH) /artifact.*",
        _REFUSED,
        r"local registry|type local|has what was uploaded|without credentials|names no agent|registry|Only another",
        "what a registry takes depends on its type, which other operations have set",
    ),
    Exemption(r"POST /session/_/create-cluster", _REFUSED, r"is in the cluster template", "one body for two uses"),
    Exemption(
        r"POST /(session(/_/[\w-]+)?|arrays)",
        _REFUSED,
        r"a batch session needs|inference sessions|elements of an array|indices|is not written 1-1000",
        "what a session takes depends on its type; indices have a notation whose numbers depend on each other",
    ),
    Exemption(r"POST /services/\{e\}/token", _REFUSED, r"duration", "one of two spellings of a field is required"),
    Exemption(
        r"(POST|PATCH) /services(/_/try|/\{e\})?(/scale)?",
        _REFUSED,
        r"replicas|name must|runtime variant|roll-out has no option|policy|startup|cannot be mounted|environment",
        "a setting bounds replicas; names, paths and policies have grammars; folders and variants are what there is",
    ),
    Exemption(r"POST /resource/agents/.*", _REFUSED, r"needs the|do not know", "depends on the action and the device"),
    Exemption(r"GET .*", (AcceptedNegativeData,), r"=null(&|$)", "null is absent in a query too (spec 03-07)"),
    # ---- limits of the settings ----
    Exemption(
        r"POST /artifacts/upload",
        _REFUSED,
        r"at most \d+ (bytes )?are taken|same name",
        "a setting limits uploads; names differ",
    ),
    Exemption(r"POST /session.*", _REFUSED, r"clusterSize must be", "a setting limits the size of clusters"),
    # ---- grammars that are no regular expressions, or are counted in bytes ----
    Exemption(
        r"\w+ /folders/\{f\}/.*",
        _REFUSED,
        r"directory|group's folder|own folder|no such|exists|moved into",
        "what a folder holds, and whose it is",
    ),
    Exemption(_ALL, _REFUSED, r"A path has at most|names no file|has \d+ bytes at most", "bytes and parts of paths"),
    Exemption(_ALL, _REFUSED, r"path of a dotfile|is reserved for the platform", "a normalized path"),
    Exemption(r"POST /template/.*|PUT /template/.*", _REFUSED, r"template", "the payload is YAML or JSON of its own"),
    Exemption(r"POST /folders(/\{f\}/(rename|clone))?", _REFUSED, r"folder's name|name", "letters of all alphabets"),
    Exemption(r"POST /folders", _REFUSED, r"^quota", "sizes with units, up to what JavaScript represents"),
    Exemption(r"POST /auth/ssh-keypair", _REFUSED, r"key", "the encoding of an SSH key"),
    Exemption(r"POST /config/.*", _REFUSED, r"configuration key|nothing to set|neither text", "keys of settings"),
    Exemption(r"GET /resource/usage/.*", _REFUSED, r"is a date as|day|month", "the calendar, and periods of 100 days"),
    Exemption(r"POST /session/\{s\}/imagify", _REFUSED, r"name of an image", "parts of image names"),
    Exemption(r"POST /session.*", _REFUSED, r"image|startsAt|resources|slot|mount", "quantities, times, images"),
    Exemption(r"POST /logs/error", _REFUSED, r"^context_env", "text that is JSON of an object"),
    Exemption(_ALL, _REFUSED, r"^(envs|arguments): ", "text that is JSON of an object"),
    Exemption(r"POST /folders/invitations/update/.*", _REFUSED, r"^inv_id: not an id", "ids in paths have no format"),
    Exemption(
        r"POST /session/\{s\}/upload", _REFUSED, r"malformed multipart", "the library takes no such names of fields"
    ),
    Exemption(r"GET /stream/.*", _REFUSED, r"WebSocket|Upgrade|^request: ", "Schemathesis opens no WebSockets"),
    # ---- replies before the server has a request ----
    Exemption(
        _ALL,
        (MissingHeaderNotRejected,),
        r"^More than 5000 requests in 15 minutes",
        "one address sends more unsigned requests than the limit of them, with all operations",
    ),
    Exemption(
        r"DELETE /folders/\{f\}/(delete-files|delete_files|unshare)",
        (*_REFUSED, MissingHeaders, UndefinedContentType),
        r"Got more than 65536 bytes",
        "the HTTP library refuses request lines above 64 KiB in its own words",
    ),
    Exemption(
        r"POST /(session|folders/(purge|delete-from-trash-bin|restore-from-trash-bin)|artifacts/\w+)|GET /\w+",
        (AllowHeaderMismatch,),
        _ALL,
        "another path with a variable matches as well, such as the folder `purge`; its methods are allowed",
    ),
)


GLOBAL_AUTH_STORAGE.set_from_requests(Signature(os.environ))


@schemathesis.hook
def before_load_schema(context: HookContext, raw_schema: dict[str, Any]) -> None:
    """Forbids fields of replies that are not declared. Clients ignore them: a later version may have more."""
    for component in raw_schema["components"]["schemas"].values():
        if "properties" in component:
            component.setdefault("additionalProperties", False)


@schemathesis.hook
def after_call(context: HookContext, case: Case[Any], response: Response) -> None:
    """Lets the cluster take sessions again, and drops REPORT from ``Allow``: OpenAPI has no such method."""
    if response.status_code == 204 and case.operation.label == "PUT /manager/status":
        send(os.environ, "PUT", "/manager/status", status="running")
    if response.status_code == 204 and case.operation.label == "POST /manager/scheduler/operation":
        send(os.environ, "POST", "/manager/scheduler/operation", op="include-agents", args=["i-local"])
    if "allow" in response.headers:
        response.headers["allow"] = [re.sub(r", REPORT\b", "", value) for value in response.headers["allow"]]


@schemathesis.hook
def filter_failure(context: HookContext, failure: Failure, case: Case[Any], response: Response) -> bool:
    """Drops the failures that the table exempts."""
    try:
        detail = str(response.json().get("detail"))
    except (ValueError, AttributeError):
        detail = response.text
    texts = (str(response.request.url), detail)
    return not any(
        isinstance(failure, row.failures)
        and re.fullmatch(row.operations, case.operation.label)
        and any(re.search(row.text, text) for text in texts)
        for row in EXEMPTIONS
    )
