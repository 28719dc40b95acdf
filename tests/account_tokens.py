"""Service accounts of an API server, and what the rendezvous server makes of their tokens."""

from elastic.kube.client import Kube
from elastic.kube.errors import KubeError
from elastic.kube.resources import SERVICE_ACCOUNTS
from elastic_training.rendezvous.server.access import AUDIENCE, Gate, KubeReviewer


async def account_token(kube: Kube, name: str, *, namespace: str, audience: str = "") -> str:
    """Return a token of this account, which is created if it does not exist. Without an audience the token is for the API server."""
    try:
        await kube.create(SERVICE_ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace=namespace)
    except KubeError as error:
        if error.reason != "AlreadyExists":
            raise
    spec = {"audiences": [audience] if audience else None, "expirationSeconds": 600}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    made = await kube.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token", body=body)
    token = made["status"]["token"]
    assert isinstance(token, str)
    return token


async def who_may_control(kube: Kube, *, namespace: str) -> dict[str, bool]:
    """Return whether the bearer of each token may speak for the control plane, which only the account `controller` may."""
    gate = Gate(keys=tuple, reviewer=KubeReviewer(kube), accounts=[f"system:serviceaccount:{namespace}:controller"])
    tokens = {
        "the controller, to us": await account_token(kube, "controller", namespace=namespace, audience=AUDIENCE),
        "the controller, to the API server": await account_token(kube, "controller", namespace=namespace),
        "somebody else, to us": await account_token(kube, "somebody", namespace=namespace, audience=AUDIENCE),
        "nobody": "a.b.c",
    }
    return {whose: await gate.is_control(token, address="127.0.0.1") for whose, token in tokens.items()}


ONLY_THE_CONTROLLER_MAY = {
    "the controller, to us": True,
    "the controller, to the API server": False,
    "somebody else, to us": False,
    "nobody": False,
}
