"""Describe a parsed request: its user, verb, type, object and options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from elastic.local.apiserver.errors import Cause, Json, StatusError, bad_request, forbidden_field, invalid, required, unsupported
from elastic.local.apiserver.resources import ResourceType


@dataclass(frozen=True, slots=True)
class User:
    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


ANONYMOUS = User("system:anonymous", ("system:unauthenticated",))


@dataclass(slots=True)
class Call:
    verb: str
    kind: ResourceType
    namespace: str
    name: str
    subresource: str
    query: Mapping[str, str]
    user: User
    body: bytes = b""
    media: str = ""
    agent: str = ""
    warnings: list[str] = field(default_factory=list)
    shown: Callable[[Json], Json] | None = None
    """Makes the form in which admission webhooks see the object, if the subresource has its own form."""
    is_admitted: bool = False
    """Whether admission has accepted the client's request already, and this call carries it out."""

    @property
    def dry_run(self) -> bool:
        return self.query.get("dryRun", "") == "All"

    @property
    def applying(self) -> bool:
        return self.media == "application/apply-patch+yaml"

    @property
    def force(self) -> bool:
        return self.flag("force")

    @property
    def manager(self) -> str:
        """Manager of the written fields: the parameter, or the first part of the user agent."""
        given = self.query.get("fieldManager", "")
        return given or self.agent.partition("/")[0] or "unknown"

    def check_options(self, options: str) -> None:
        """Refuse invalid values of dryRun, fieldValidation and fieldManager."""
        causes: list[Cause] = []
        if self.query.get("dryRun") not in (None, "", "All"):
            causes.append(unsupported("dryRun", [self.query["dryRun"]], ["All"]))
        if self.query.get("fieldValidation") not in (None, "", "Ignore", "Warn", "Strict"):
            causes.append(unsupported("fieldValidation", self.query["fieldValidation"], ["Ignore", "Strict", "Warn"]))
        if options == "PatchOptions" and self.applying and not self.query.get("fieldManager"):
            causes.append(required("fieldManager", "is required for apply patch"))
        if options == "PatchOptions" and not self.applying and "force" in self.query:
            causes.append(forbidden_field("force", "may not be specified for non-apply patch"))
        if len(self.query.get("fieldManager", "")) > 128:
            causes.append(Cause("fieldManager", "FieldValueTooLong", "Too long: may not be more than 128 bytes"))
        if causes:
            raise invalid("meta.k8s.io", options, "", causes)

    def integer(self, name: str) -> int | None:
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            raise bad_request(f'strconv.ParseInt: parsing "{text}": invalid syntax') from None

    def flag(self, name: str) -> bool:
        return self.query.get(name, "false").lower() not in ("false", "0", "") if name in self.query else False


def too_large(limit: int) -> StatusError:
    return StatusError(413, "RequestEntityTooLarge", f"Request entity too large: limit is {limit}")
