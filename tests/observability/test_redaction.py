"""What leaves the node as text: credentials are replaced, and nothing else is."""

from __future__ import annotations

import base64

import pytest

from kubeproxy.observability.redaction import HIDDEN, redact

TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJwbGFudGVkIn0.c2lnbmF0dXJl"
KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEplantedkey\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("GET https://user:planted-password@host/x", f"GET https://{HIDDEN}@host/x"),
        ("https://host/x?token=planted-query&a=b is away", f"https://host/x?{HIDDEN} is away"),
        (f"Authorization: Bearer {TOKEN}", f"Authorization: Bearer {HIDDEN}"),
        (f"seen {TOKEN}.", f"seen {HIDDEN}."),
        (f"a {KEY} b", f"a {HIDDEN} b"),
        (f"client-key-data: {base64.b64encode(KEY.encode()).decode()}", f"client-key-data: {HIDDEN}"),
        ("  token: planted-opaque", f"  token: {HIDDEN}"),
        ('{"password": "planted-password", "a": 1}', f'{{"password": {HIDDEN}, "a": 1}}'),
        ("run --bearer-token=planted-opaque --v=2", f"run --bearer-token={HIDDEN} --v=2"),
        ("run --password planted-password --v=2", f"run --password {HIDDEN} --v=2"),
        ("cannot read https://me:secret@host/a.yaml: 401", f"cannot read https://{HIDDEN}@host/a.yaml: 401"),
        ("http://host/a?token=secret&x=1 document 2", f"http://host/a?{HIDDEN} document 2"),
        ('url="https://token@host:6443/a?b=c" retry', f'url="https://{HIDDEN}@host:6443/a?{HIDDEN}" retry'),
        ("10.3.0.2:8080 refuses; is it up?", "10.3.0.2:8080 refuses; is it up?"),
        (f"https://{'u' * 600}@host/", f"https://{HIDDEN}@host/"),
        (f"https://host/{'a' * 600}?b=c", f"https://host/{'a' * 600}?{HIDDEN}"),
        ("ip saddr 10.0.0.1 tcp dport 80 redirect to :34001", "ip saddr 10.0.0.1 tcp dport 80 redirect to :34001"),
        ("endpoint ejected service=default/token:http", "endpoint ejected service=default/token:http"),
    ],
)
def test_credentials_are_replaced(text: str, found: str) -> None:
    assert redact(text) == found
