"""Asks the API server, by TokenReview and SubjectAccessReview, whether a client may read an HTTP page of this process.

The answers are cached for `CACHE_S`, as by the components of Kubernetes. The requests are made with this program's own
`Client`, because the generated client of kubernetes_asyncio would cost the daemon 35 MiB.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import msgspec

from kubeproxy.kubernetes.api_types import Wire
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.errors import ApiError

CACHE_S: Final = 10.0
"""How long an answer is used, in seconds (the default of delegated authentication and authorization)."""
CACHED: Final = 1024
"""The largest number of cached answers of each kind."""
MAX_TOKEN: Final = 16_384
"""The longest accepted token, in bytes. A longer token is refused without a request to the server."""
STRANGERS: Final = 4
"""The largest number of concurrent requests about tokens that the server has not accepted within `ACCEPTED_S`. Further
requests are refused, so that known clients do not wait behind unknown clients."""
ACCEPTED_S: Final = 3600.0
MASTERS: Final = "system:masters"
"""Members of this group may read every page, as in every component of Kubernetes."""
AUTHENTICATED: Final = "system:authenticated"

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
S = TypeVar("S")


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """An authenticated client."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS: Final = User(name="system:anonymous", groups=("system:unauthenticated",))


class AccessRefusedError(Exception):
    """Raised if a client may not read a page. `status` is the HTTP status for the client: 401, 403, 429 if there are
    too many unknown clients, or 503 if the API server does not answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class DelegatedAccess:
    """Authenticates and authorizes clients by the API server. It asks about each client at most once in `CACHE_S`.
    `clock` returns monotonic seconds."""

    def __init__(self, requests: Client, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._requests = requests
        self._users: _Recent[bytes, User | None] = _Recent(clock)
        self._decisions: _Recent[tuple[User, str, str], str | None] = _Recent(clock)
        self._accepted: _Recent[bytes, None] = _Recent(clock, kept_s=ACCEPTED_S)
        self._strangers = 0

    async def demand(
        self, path: str, method: str, *, authorization: str, certificate: Mapping[str, Any] | None
    ) -> User:
        """Return the client that requests a page. Raise `AccessRefusedError` if the client may not read the page.

        `authorization` is the value of the header. `certificate` is the client's certificate, which TLS has verified,
        in the form of ``SSLSocket.getpeercert``.
        """
        user = _user_of(certificate) if certificate else await self._user_with(authorization)
        if MASTERS in user.groups:
            return user
        with self._turn(stranger=user is ANONYMOUS):
            refusal = await self._refusal(user, path, _VERBS.get(method, method.lower()))
        if refusal is not None:
            raise AccessRefusedError(403, refusal)
        return user

    async def _user_with(self, authorization: str) -> User:
        scheme, _, token = authorization.strip().partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token:
            return ANONYMOUS
        if len(token) > MAX_TOKEN:
            raise AccessRefusedError(401, "Unauthorized: the token is too long")
        key = hashlib.sha256(token.encode()).digest()
        if (known := self._users.get(key)) is not None:
            (user,) = known
        else:
            with self._turn(stranger=self._accepted.get(key) is None):
                user = await self._review(token)
            self._users.put(key, user)
            if user is not None:
                self._accepted.put(key, None)
        if user is None:
            raise AccessRefusedError(401, "Unauthorized: the API server does not accept the token")
        return user

    @contextmanager
    def _turn(self, *, stranger: bool) -> Iterator[None]:
        """Count a request to the API server inside the context. Raise `AccessRefusedError` if it is about an unknown
        client while there are `STRANGERS` such requests."""
        if stranger and self._strangers >= STRANGERS:
            raise AccessRefusedError(429, "Too many requests of unknown clients; try again")
        self._strangers += stranger
        try:
            yield
        finally:
            self._strangers -= stranger

    async def _review(self, token: str) -> User | None:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        status = await self._ask("/apis/authentication.k8s.io/v1/tokenreviews", body, _TokenReviewStatus)
        if not status.authenticated or not status.user.username:
            return None
        extra = tuple(sorted((key, tuple(values)) for key, values in (status.user.extra or {}).items()))
        return User(name=status.user.username, uid=status.user.uid, groups=tuple(status.user.groups or ()), extra=extra)

    async def _refusal(self, user: User, path: str, verb: str) -> str | None:
        key = user, path, verb
        if (known := self._decisions.get(key)) is not None:
            return known[0]
        spec: dict[str, Any] = {"nonResourceAttributes": {"path": path, "verb": verb}, "user": user.name}
        spec |= {"groups": list(user.groups)} if user.groups else {}
        spec |= {"uid": user.uid} if user.uid else {}
        spec |= {"extra": {name: list(values) for name, values in user.extra}} if user.extra else {}
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}
        status = await self._ask("/apis/authorization.k8s.io/v1/subjectaccessreviews", body, _AccessStatus)
        because = f": {status.reason}" if status.reason else ""
        refusal = None if status.allowed else f'Forbidden: user "{user.name}" cannot {verb} path "{path}"{because}'
        self._decisions.put(key, refusal)
        return refusal

    async def _ask(self, path: str, body: Mapping[str, Any], kind: type[S]) -> S:
        try:
            answer = await self._requests.send_json("POST", path, msgspec.json.encode(body))
            return msgspec.convert(msgspec.json.decode(answer, type=_Review).status, kind, strict=False)
        except ApiError as error:
            raise AccessRefusedError(503, f"the API server cannot review the client: {error}") from error
        except msgspec.MsgspecError as error:
            raise AccessRefusedError(503, f"the API server answered with no review: {error}") from error


_VERBS: Final = {"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class _Review(Wire, frozen=True):
    status: dict[str, Any] = msgspec.field(default_factory=dict)


class _TokenUser(Wire, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenReviewStatus(Wire, frozen=True):
    authenticated: bool = False
    user: _TokenUser = _TokenUser()


class _AccessStatus(Wire, frozen=True):
    allowed: bool = False
    reason: str = ""


class _Recent(Generic[K, V]):
    """A cache of recent answers."""

    def __init__(self, clock: Callable[[], float], *, kept_s: float = CACHE_S) -> None:
        self._clock = clock
        self._kept_s = kept_s
        self._answers: OrderedDict[K, tuple[V, float]] = OrderedDict()

    def get(self, key: K) -> tuple[V] | None:
        """Return the answer in a tuple of one element, because the answer itself may be None. Return None if there is
        no answer or it is too old."""
        found = self._answers.get(key)
        if found is None or self._clock() - found[1] >= self._kept_s:
            return None
        return (found[0],)

    def put(self, key: K, answer: V) -> None:
        """Store an answer. If there are too many, remove the oldest answer."""
        self._answers[key] = answer, self._clock()
        self._answers.move_to_end(key)
        if len(self._answers) > CACHED:
            self._answers.popitem(last=False)


def _user_of(certificate: Mapping[str, Any]) -> User:
    """Return the user of a client certificate: the common name is the user name, and the organizations are the
    groups."""
    subject = [pair for part in certificate.get("subject", ()) for pair in part]
    names = [value for key, value in subject if key == "commonName"]
    groups = [value for key, value in subject if key == "organizationName"]
    if not names:
        raise AccessRefusedError(401, "Unauthorized: the client certificate has no common name")
    return User(name=names[0], groups=(*groups, AUTHENTICATED))
