"""Renew a server's certificate and CA: the certificate after two thirds of its 90 days, the CA in its last year.

A new CA is trusted next to the old one until the next certificate, so that API servers know a CA before they see its certificate. This
module reads no clock and knows no Secret.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from elastic.certificates import Pair, covers, issue, load_key, make_ca

LIFE = timedelta(days=90)
RENEWED_BEFORE_END = LIFE / 3
AUTHORITY_RENEWED_BEFORE_END = timedelta(days=365)


class Due(StrEnum):
    NOTHING = "nothing"
    CERTIFICATE = "certificate"
    AUTHORITY = "authority"
    ALL = "authority and certificate"


@dataclass(frozen=True, slots=True)
class Credentials:
    """Credentials as PEM. `trusted` are the trusted authorities, the signing one first. Without its key, another program renews."""

    trusted: bytes
    authority_key: bytes
    served: Pair


def due(credentials: Credentials | None, names: tuple[str, ...], *, now: datetime) -> Due:
    """Return the parts that have to be created again."""
    if credentials is None:
        return Due.ALL
    if not credentials.authority_key:
        return Due.NOTHING
    try:
        authority, served = _whole(credentials)
        is_covered = covers(credentials.served.certificate, names)
    except ValueError:
        return Due.ALL
    if authority.not_valid_after_utc <= now:
        return Due.ALL
    if authority.not_valid_after_utc - AUTHORITY_RENEWED_BEFORE_END <= now:
        return Due.AUTHORITY
    if served.not_valid_after_utc - RENEWED_BEFORE_END <= now or not is_covered:
        return Due.CERTIFICATE
    return Due.NOTHING


def renewed(credentials: Credentials | None, names: tuple[str, ...], *, name: str, what: Due) -> Credentials:
    """Return the credentials with the due parts created again, in the name of the server `name`."""
    if credentials is None or what is Due.ALL:
        authority = make_ca(f"{name}-ca")
        return Credentials(authority.certificate, authority.key, _issued(authority, name, names))
    if what is Due.AUTHORITY:
        authority = make_ca(f"{name}-ca")
        return replace(credentials, trusted=authority.certificate + _first(credentials.trusted), authority_key=authority.key)
    if what is Due.CERTIFICATE:
        return replace(credentials, served=_issued(Pair(_first(credentials.trusted), credentials.authority_key), name, names))
    return credentials


def _issued(authority: Pair, name: str, names: tuple[str, ...]) -> Pair:
    return issue(authority, name, names=names, life=LIFE)


def _whole(credentials: Credentials) -> tuple[x509.Certificate, x509.Certificate]:
    """Return the authority that signs and the served certificate. Raise ValueError if they and their keys do not fit."""
    authorities = x509.load_pem_x509_certificates(credentials.trusted)
    served = x509.load_pem_x509_certificate(credentials.served.certificate)
    for certificate, key in ((authorities[0], credentials.authority_key), (served, credentials.served.key)):
        if load_key(key).public_key() != certificate.public_key():
            raise ValueError("the certificate and the key do not match")
    if not any(_signed(authority, served) for authority in authorities):
        raise ValueError("no CA of the bundle signed the certificate")
    return authorities[0], served


def _signed(authority: x509.Certificate, served: x509.Certificate) -> bool:
    try:
        served.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _first(bundle: bytes) -> bytes:
    end = b"-----END CERTIFICATE-----\n"
    return bundle[: bundle.index(end) + len(end)]
