"""The kinds of objects that a job owns, and the label by which we know ours."""

from collections.abc import Mapping
from types import MappingProxyType

from elastic.kube.resources import (
    CONFIG_MAPS,
    HORIZONTAL_POD_AUTOSCALERS,
    NETWORK_POLICIES,
    PLUGIN_POD_GROUPS,
    POD_DISRUPTION_BUDGETS,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    VOLCANO_POD_GROUPS,
    Resource,
)

OWNED_LABEL = "elastic-training/job"
"""Label of the objects that we made, except pods and services, so that one watch for each kind sees only ours."""

UNMARKED = frozenset({HORIZONTAL_POD_AUTOSCALERS, VOLCANO_POD_GROUPS, PLUGIN_POD_GROUPS})
"""Kinds that are watched without a selector: upstream's objects have no labels, and there are few of them."""

_ALL = (
    PODS,
    SERVICES,
    CONFIG_MAPS,
    SECRETS,
    SERVICE_ACCOUNTS,
    ROLES,
    ROLE_BINDINGS,
    HORIZONTAL_POD_AUTOSCALERS,
    POD_DISRUPTION_BUDGETS,
    NETWORK_POLICIES,
    VOLCANO_POD_GROUPS,
    PLUGIN_POD_GROUPS,
)
RESOURCES: Mapping[tuple[str, str], Resource] = MappingProxyType({(r.api_version, r.kind): r for r in _ALL})
