"""Find the mistakes in a registration of admission webhooks, in a real server's words."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from elastic.local.apiserver import names, rules
from elastic.local.apiserver.errors import Cause, Json, bad, duplicate, required, unsupported

OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_FORM = "desired format: https://host[/path]"
_WORDS = {
    "failurePolicy": ("Fail", "Ignore"),
    "matchPolicy": ("Equivalent", "Exact"),
    "sideEffects": ("None", "NoneOnDryRun"),
}


def causes(obj: Json) -> list[Cause]:
    found: list[Cause] = []
    seen: set[str] = set()
    for i, hook in enumerate(obj.get("webhooks") or ()):
        at, name = f"webhooks[{i}]", hook.get("name") or ""
        found += [
            *_name(name, f"{at}.name"),
            *_rules(hook, at),
            *_words(hook, at),
            *_client(hook.get("clientConfig") or {}, f"{at}.clientConfig"),
        ]
        found += [*_versions(hook.get("admissionReviewVersions") or [], f"{at}.admissionReviewVersions"), *_conditions(hook, at)]
        if name and name in seen:
            found.append(duplicate(f"{at}.name", name))
        seen.add(name)
    return found


def _name(name: str, at: str) -> Iterator[Cause]:
    if not name:
        yield required(at)
    elif name.count(".") < 2:
        yield bad(at, name, "should be a domain with at least three segments separated by dots")
    else:
        yield from names.subdomain_causes(name, at)


def _words(hook: Json, at: str) -> Iterator[Cause]:
    for key, allowed in _WORDS.items():
        if hook.get(key) is None and key == "sideEffects":
            yield required(f"{at}.{key}", "must specify one of None, NoneOnDryRun")
        elif hook.get(key) is not None and hook[key] not in allowed:
            yield unsupported(f"{at}.{key}", hook[key], allowed)
    if not 1 <= hook.get("timeoutSeconds", 10) <= 30:
        yield bad(f"{at}.timeoutSeconds", hook["timeoutSeconds"], "the timeout value must be between 1 and 30 seconds")


def _versions(versions: list[str], at: str) -> Iterator[Cause]:
    if not versions:
        yield required(at, "must specify one of v1, v1beta1")
    elif not {"v1", "v1beta1"} & set(versions):
        yield bad(at, versions, "must include at least one of v1, v1beta1")


def _rules(hook: Json, at: str) -> Iterator[Cause]:
    for j, rule in enumerate(hook.get("rules") or ()):
        here = f"{at}.rules[{j}]"
        for k, operation in enumerate(rule.get("operations") or ()):
            if operation not in OPERATIONS:
                yield unsupported(f"{here}.operations[{k}]", operation, OPERATIONS)
        for key, what in (("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")):
            given = rule.get(key) or []
            if not given:
                yield required(f"{here}.{key}")
            elif "*" in given and len(given) > 1:
                yield bad(f"{here}.{key}", given, f"if '*' is present, must not specify other {what}")
        if not rule.get("resources"):
            yield required(f"{here}.resources")
        elif "*/*" in rule["resources"] and len(rule["resources"]) > 1:
            yield bad(f"{here}.resources", rule["resources"], "if '*/*' is present, must not specify other resources")
        if rule.get("scope", "*") not in ("*", "Cluster", "Namespaced"):
            yield unsupported(f"{here}.scope", rule["scope"], ("*", "Cluster", "Namespaced"))


def _client(client: Json, at: str) -> Iterator[Cause]:
    url, service = client.get("url"), client.get("service")
    if (url is None) == (service is None):
        yield required(at, "exactly one of url or service is required")
        return
    yield from _url(url, f"{at}.url") if url is not None else _service(service or {}, f"{at}.service")
    if client.get("caBundle"):
        try:
            ssl.create_default_context(cadata=base64.b64decode(client["caBundle"]).decode())
        except (binascii.Error, UnicodeDecodeError, ssl.SSLError, ValueError):
            yield bad(f"{at}.caBundle", client["caBundle"], "unable to load root certificates: unable to parse bytes as PEM block")


def _url(url: str, at: str) -> Iterator[Cause]:
    try:
        read = urlsplit(url)
        host = read.hostname
    except ValueError as e:
        yield required(at, f"url must be a valid URL: {e}; {_FORM}")
        return
    if read.scheme != "https":
        yield bad(at, read.scheme, f"'https' is the only allowed URL scheme; {_FORM}")
    if not host:
        yield bad(at, "", f"host must be specified; {_FORM}")
    if read.username is not None:
        yield bad(at, read.username, "user information is not permitted in the URL")
    if read.fragment:
        yield bad(at, read.fragment, "fragments are not permitted in the URL")
    if read.query:
        yield bad(at, read.query, "query parameters are not permitted in the URL")


def _service(service: Json, at: str) -> Iterator[Cause]:
    for key in ("name", "namespace"):
        if not service.get(key):
            yield required(f"{at}.{key}", f"service {key} is required")
    if not 1 <= service.get("port", 443) <= 65535:
        yield bad(f"{at}.port", service["port"], "port is not valid: must be between 1 and 65535, inclusive")
    path = service.get("path") or "/"
    if not path.startswith("/"):
        yield bad(f"{at}.path", path, "must start with a '/'")
        return
    for k, segment in enumerate(path[1:].removesuffix("/").split("/") if path != "/" else ()):
        if not segment:
            yield bad(f"{at}.path", path, f"segment[{k}] may not be empty")
        elif names.subdomain_errors(segment):
            yield bad(f"{at}.path", path, f"segment[{k}]: {names.subdomain_errors(segment)[0]}")


def _conditions(hook: Json, at: str) -> Iterator[Cause]:
    conditions: list[Any] = hook.get("matchConditions") or []
    seen: set[str] = set()
    if len(conditions) > 64:
        yield Cause(f"{at}.matchConditions", "FieldValueTooMany", f"Too many: {len(conditions)}: must have at most 64 items")
        return
    for k, condition in enumerate(conditions):
        here, name, text = f"{at}.matchConditions[{k}]", condition.get("name") or "", (condition.get("expression") or "").strip()
        if not text:
            yield required(f"{here}.expression")
        elif wrong := rules.problem(text):
            yield bad(f"{here}.expression", text, wrong)
        if not name:
            yield required(f"{here}.name")
        else:
            yield from (bad(f"{here}.name", name, words) for words in names.qualified_errors(name))
        if name and name in seen:
            yield duplicate(f"{here}.name", name)
        seen.add(name)
