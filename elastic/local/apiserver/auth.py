"""Identify the caller by the admin token, or by a signed token of a service account that still exists. Make and review these tokens."""

from __future__ import annotations

import base64
import hmac
import time
from collections.abc import Callable, Sequence
from uuid import uuid4

import orjson
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec, utils
from cryptography.hazmat.primitives.hashes import SHA256

from elastic.local.apiserver.calls import User
from elastic.local.apiserver.errors import Json

ISSUER = "https://kubernetes.default.svc"
ADMIN = User("kubernetes-admin", ("system:masters", "system:authenticated"))


def _encode(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decode(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Tokens:
    """Signs and checks tokens. `alive(kind, namespace, name, uid)` says whether the object to which a token is bound still exists."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, admin_token: str, alive: Callable[[str, str, str, str], bool]) -> None:
        self._key, self._admin, self._alive = key, admin_token, alive
        self._checked: dict[str, Json] = {}

    def sign(self, claims: Json) -> str:
        head = _encode(orjson.dumps({"alg": "ES256", "typ": "JWT"}))
        signed = f"{head}.{_encode(orjson.dumps(claims))}"
        r, s = utils.decode_dss_signature(self._key.sign(signed.encode(), ec.ECDSA(SHA256())))
        return f"{signed}.{_encode(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"

    def account_token(
        self, namespace: str, name: str, uid: str, *, seconds: int, audiences: Sequence[str] = (), bound: Json | None = None
    ) -> tuple[str, float]:
        """Return a token for a service account, and the time at which it expires. `bound` names a pod or secret on which it depends."""
        now = int(time.time())
        inner: Json = {"namespace": namespace, "serviceaccount": {"name": name, "uid": uid}}
        if bound:
            inner[str(bound["kind"]).lower()] = {"name": bound["name"], "uid": bound.get("uid", "")}
        claims = {
            "iss": ISSUER,
            "sub": f"system:serviceaccount:{namespace}:{name}",
            "aud": list(audiences) or [ISSUER],
            "exp": now + seconds,
            "jti": str(uuid4()),
            "iat": now,
            "nbf": now,
            "kubernetes.io": inner,
        }
        return self.sign(claims), now + seconds

    def _claims(self, token: str) -> Json | None:
        """Return the claims of a token that we signed, or None for any other."""
        known = self._checked.get(token)
        if known is not None:
            return known
        try:
            head, body, signature = token.split(".")
            raw = _decode(signature)
            if len(raw) != 64:
                return None
            der = utils.encode_dss_signature(int.from_bytes(raw[:32], "big"), int.from_bytes(raw[32:], "big"))
            self._key.public_key().verify(der, f"{head}.{body}".encode(), ec.ECDSA(SHA256()))
            claims: Json = orjson.loads(_decode(body))
        except (ValueError, InvalidSignature):
            return None
        if len(self._checked) > 1000:
            self._checked.clear()
        self._checked[token] = claims
        return claims

    def user(self, token: str, audiences: Sequence[str] = ()) -> tuple[User, list[str]] | None:
        """Return the user of a token, and the requested audiences for which it is valid."""
        wanted = list(audiences) or [ISSUER]
        if not token.isascii():
            return None
        if hmac.compare_digest(token.encode(), self._admin.encode()):
            return ADMIN, wanted if list(audiences) in ([], [ISSUER]) else []
        claims = self._claims(token)
        if claims is None or not claims["nbf"] - 5 <= time.time() < claims["exp"]:
            return None
        met = [a for a in wanted if a in claims["aud"]]
        inner = claims["kubernetes.io"]
        if not met or not self._is_alive(inner):
            return None
        return _account_user(inner, claims["jti"]), met

    def _is_alive(self, inner: Json) -> bool:
        namespace, account = inner["namespace"], inner["serviceaccount"]
        if not self._alive("serviceaccounts", namespace, account["name"], account["uid"]):
            return False
        for kind in ("pod", "secret"):
            bound = inner.get(kind)
            if bound and not self._alive(f"{kind}s", namespace, bound["name"], bound["uid"]):
                return False
        return True


def _account_user(inner: Json, token_id: str) -> User:
    namespace, account = inner["namespace"], inner["serviceaccount"]
    extra: dict[str, tuple[str, ...]] = {"authentication.kubernetes.io/credential-id": (f"JTI={token_id}",)}
    if "pod" in inner:
        extra["authentication.kubernetes.io/pod-name"] = (inner["pod"]["name"],)
        extra["authentication.kubernetes.io/pod-uid"] = (inner["pod"]["uid"],)
    groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
    return User(f"system:serviceaccount:{namespace}:{account['name']}", groups, account["uid"], extra)
