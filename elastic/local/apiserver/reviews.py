"""Answer reviews: who the caller is, whose token this is, and whether a user may do something. Reviews are never stored."""

from __future__ import annotations

from typing import Any, Protocol

from elastic.local.apiserver.auth import Tokens
from elastic.local.apiserver.calls import Call, User
from elastic.local.apiserver.errors import Json, bad, invalid
from elastic.local.apiserver.objects import now_text


class Authorizer(Protocol):
    def allows(self, user: User, attributes: Json, /) -> tuple[bool, str]:
        """Return whether the user may do this, and the reason.

        The attributes are a verb with group, resource, subresource, namespace and name, or a verb with a path.
        """

    def held(self, user: User, namespace: str, /) -> list[Json]:
        """Return the rules that hold for a user in a namespace."""


class Reviews:
    def __init__(self, tokens: Tokens, authorizer: Authorizer) -> None:
        self._tokens, self._authorizer = tokens, authorizer

    def answer(self, call: Call, obj: Json) -> Json:
        kind, spec = call.kind.kind, obj.get("spec") or {}
        if kind in ("SubjectAccessReview", "LocalSubjectAccessReview") and not (spec.get("user") or spec.get("groups")):
            raise invalid("authorization.k8s.io", "", "", [bad("spec.user", "", "at least one of user or group must be specified")])
        answers: dict[str, Any] = {
            "TokenReview": self._token,
            "SelfSubjectReview": self._self,
            "SelfSubjectRulesReview": self._rules,
        }
        status = answers[kind](call, spec) if kind in answers else self._access(call, spec)
        if kind == "SelfSubjectReview":
            obj["metadata"]["creationTimestamp"] = now_text()
        return {**obj, "status": status}

    def _token(self, call: Call, spec: Json) -> Json:
        audiences = spec.get("audiences") or []
        found = self._tokens.user(spec.get("token", ""), audiences)
        if found is None or not found[1]:
            return {"user": {}, "error": "invalid bearer token"}
        user, met = found
        return {"authenticated": True, "user": user_info(user), "audiences": met}

    def _self(self, call: Call, spec: Json) -> Json:
        return {"userInfo": user_info(call.user)}

    def _rules(self, call: Call, spec: Json) -> Json:
        held = self._authorizer.held(call.user, spec.get("namespace", ""))
        return {
            "resourceRules": [r for r in held if not r.get("nonResourceURLs")],
            "nonResourceRules": [{k: r[k] for k in ("verbs", "nonResourceURLs")} for r in held if r.get("nonResourceURLs")],
            "incomplete": False,
        }

    def _access(self, call: Call, spec: Json) -> Json:
        user = call.user
        if call.kind.kind in ("SubjectAccessReview", "LocalSubjectAccessReview"):
            user = User(spec.get("user", ""), tuple(spec.get("groups") or ()))
        resource, path = spec.get("resourceAttributes"), spec.get("nonResourceAttributes")
        if (resource is None) == (path is None):
            why = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            raise invalid("authorization.k8s.io", "", "", [bad("spec.resourceAttributes", None, why)])
        allowed, reason = self._authorizer.allows(user, resource or path or {})
        return {"allowed": allowed, **({"reason": reason} if reason else {})}


def user_info(user: User) -> Json:
    out: Json = {"username": user.name, "groups": list(user.groups)}
    if user.uid:
        out["uid"] = user.uid
    if user.extra:
        out["extra"] = {k: list(v) for k, v in user.extra.items()}
    return out
