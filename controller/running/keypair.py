"""Make key pairs for jobs that run over ssh. This is the only random part of a reconcile, so it is not part of a decision."""

import base64

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from elastic_training.controller.facts.snapshot import KeyPair


def new_key_pair() -> KeyPair:
    """Return a new pair of the type that the MPI Operator makes. Every ssh of the last ten years takes it, in FIPS mode too."""
    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return KeyPair(private=base64.b64encode(private).decode(), public=base64.b64encode(public + b"\n").decode())
