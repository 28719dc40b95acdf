"""Choose the form of an answer from the client's Accept header. The first entry that can be served wins."""

from __future__ import annotations

from enum import Enum

from elastic.local.apiserver.errors import StatusError


class Form(Enum):
    JSON = "json"
    YAML = "yaml"
    TABLE = "table"
    PARTIAL = "partial"


_AS = {"Table": Form.TABLE, "PartialObjectMetadata": Form.PARTIAL, "PartialObjectMetadataList": Form.PARTIAL}
_OFFERED = (
    "application/json, application/yaml, application/vnd.kubernetes.protobuf, application/json;stream=watch, "
    "application/vnd.kubernetes.protobuf;stream=watch"
)


def entries(accept: str) -> list[tuple[str, dict[str, str]]]:
    out = []
    for part in accept.split(","):
        media, *parameters = [p.strip() for p in part.split(";")]
        out.append((media.lower(), dict(p.partition("=")[::2] for p in parameters)))
    return out


def chosen(accept: str) -> Form:
    if not accept.strip():
        return Form.JSON
    converted = False
    for media, parameters in entries(accept):
        if "as" in parameters:
            converted = True
            form = _AS.get(parameters["as"])
            if form is not None and media == "application/json" and (parameters.get("g"), parameters.get("v")) == ("meta.k8s.io", "v1"):
                return form
        elif media in ("application/json", "*/*", "application/*"):
            return Form.JSON
        elif media == "application/yaml":
            return Form.YAML
    if converted:
        text = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf"
        raise StatusError(406, "NotAcceptable", text)
    raise StatusError(406, "NotAcceptable", f"406: Not Acceptable\n\nAvailable representations: {_OFFERED}", details={})


def wants_aggregated(accept: str) -> bool:
    """Return whether the client asks for discovery in a single document, in a version that is served."""
    for media, parameters in entries(accept):
        if parameters.get("as") == "APIGroupDiscoveryList":
            if (parameters.get("g"), parameters.get("v")) == ("apidiscovery.k8s.io", "v2"):
                return True
        elif media in ("application/json", "*/*"):
            return False
    return False
