"""Describe a signal: where it is seen, how it is recognised, its meaning for a worker, and the remaining time."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class On(StrEnum):
    """The object on which a signal is seen."""

    NODE_TAINT = "node taint"
    NODE_CONDITION = "node condition"
    NODE_ANNOTATION = "node annotation"
    POD_CONDITION = "pod condition"
    POD_STATUS = "pod status"
    POD_DELETION = "pod deletion"
    JOB_SUSPENSION = "job suspension"

    @property
    def is_of_node(self) -> bool:
        return self in (On.NODE_TAINT, On.NODE_CONDITION, On.NODE_ANNOTATION)


class Meaning(StrEnum):
    GONE = "gone"
    """Nothing can be saved any more: the node is lost, or the pod has ended."""
    LEAVE = "leave"
    """The worker must have left by a time."""
    PREPARE = "prepare"
    """The worker may have to go. It continues to train until its replacement is there."""
    INFORM = "inform"
    """Only an Event is written, if the signal is news."""


class Deadline(StrEnum):
    """The place of the time at which the worker is lost."""

    LEAD = "lead"
    """Nowhere: it is the signal's lead time after the first sight."""
    VALUE = "value"
    """The value, seconds since 1970, is the time of the signal; the lead time counts from there."""
    LABEL = "label"
    """So does the value of another label of the node."""
    MOMENT = "moment"
    """The value itself is the time of the loss, as RFC 3339 has it."""
    MESSAGE = "message"
    """The message of the condition ends with the time of the loss, as HTTP has it."""
    TOLERATION = "toleration"
    """The taint's timeAdded plus the pod's toleration."""
    DELETION = "deletion"
    """The pod's deletionTimestamp, or its expected value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionSignal:
    name: str
    """By which status, commands and configuration call it."""
    source: str
    """The program that gives the signal."""
    on: On
    key: str
    """Key of the taint or annotation, of the suspended job's label; type of the condition; reason in a pod's status."""
    value: str = ""
    """Value of the taint, annotation or label; status of the condition. Empty: any."""
    effect: str = ""
    """Effect of the taint. Empty: any."""
    reason: str = ""
    """Reason of the condition. Empty: any."""
    message: str = ""
    """Part of the condition's message."""
    node_label: str = ""
    """KEY=VALUE that the node must have as well."""
    meaning: Meaning
    lead_s: float = 0.0
    """Seconds from the signal to the loss."""
    deadline: Deadline = Deadline.LEAD
    deadline_key: str = ""
    """Key of the label that holds the time."""
    taken_back: str
    """Sign that takes the signal back, in words."""
    note: str = ""
    is_news: bool = True
    """Whether the signal is news. If not, it only describes the node, or repeats a known fact."""

    @property
    def ends_pods(self) -> bool:
        """Return whether the end of a pod with this signal says nothing about the pod's program."""
        return self.on in (On.POD_CONDITION, On.POD_STATUS) and self.meaning in (Meaning.GONE, Meaning.LEAVE)

    @property
    def match(self) -> str:
        """Description of the taint, condition or annotation, in words."""
        words = self.key or "any"
        words += f"={self.value}" if self.value else ""
        words += f":{self.effect}" if self.effect else ""
        words += f", reason {self.reason}" if self.reason else ""
        words += f", message with `{self.message}`" if self.message else ""
        return words + (f", on nodes with {self.node_label}" if self.node_label else "")
