"""Define the errors of the API server."""

from typing import Any

import orjson

MALFORMED = "Malformed"
"""Reason for an invalid answer, of a server behind an API service or of a server that is no API server."""
UNTOLD = "Unknown"
"""Reason if the answer names none, for example because its sender is no API server."""
WITHOUT_SERVER = ("NoToken", "NoDashboard", "NoCredentials")
"""Reasons of errors with code 0 that do not mean that the API server is away."""


class KubeError(Exception):
    """A refusal by the API server: HTTP code, machine-readable reason, message in words, and the whole Status body."""

    def __init__(self, *, code: int, reason: str, message: str, body: dict[str, Any] | None = None) -> None:
        super().__init__(f"{code} {reason}: {message}")
        self.code = code
        self.reason = reason
        self.message = message
        self.body = body if body is not None else {}

    @property
    def words(self) -> str:
        """Return the problem and its remedy, for people."""
        if self.reason in WITHOUT_SERVER:
            return self.message
        if self.reason == MALFORMED:
            return f"the API server's answer makes no sense: {self.message}"
        if self.code == 0 and "CERTIFICATE_VERIFY_FAILED" in self.message:
            return f"the API server is not the one of the kubeconfig, by its certificate: {self.message}; get a new kubeconfig"
        if self.code == 0:
            return f"the API server cannot be reached: {self.message}; is the cluster running?"
        if self.code == 401:
            return (
                f"the API server does not accept your credentials: {self.message}; renew them or choose another --kubeconfig or --context"
            )
        if self.code == 403 and "admission webhook" not in self.message:
            return f"you may not do this: {self.message}"
        return self.message

    @property
    def retry_after_s(self) -> float | None:
        details = self.body.get("details")
        seconds = details.get("retryAfterSeconds") if isinstance(details, dict) else None
        return float(seconds) if seconds and isinstance(seconds, int | float) else None


def error_from_status(status: dict[str, Any]) -> KubeError:
    code = status.get("code")
    return KubeError(
        code=code if code and isinstance(code, int) else 500,
        reason=str(status.get("reason") or UNTOLD),
        message=str(status.get("message") or "no message"),
        body=status,
    )


def error_from_response(code: int, body: bytes) -> KubeError:
    """Understands a Status object, and keeps the beginning of anything else, such as a proxy's HTML page."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    if isinstance(parsed, dict) and parsed.get("kind") == "Status":
        return error_from_status({**parsed, "code": found if (found := parsed.get("code")) and isinstance(found, int) else code})
    text = body[:500].decode(errors="replace").strip()
    return KubeError(code=code, reason=UNTOLD, message=text or "empty answer")
