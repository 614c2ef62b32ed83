"""What is given to kubectl and to us: files, flags, and what is different on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

UTF16 = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: utf16-%s}\ndata: {k: é}\n"


@dataclass(frozen=True, slots=True)
class Case:
    """One command line."""

    name: str
    files: Mapping[str, str | bytes]
    args: tuple[str, ...] = ()
    stdin: str = ""
    more: bool = False
    """We create what kubectl, or its version 1.20, gives up: its lines are among ours."""
    said: tuple[str, ...] = ()
    """What of kubectl's standard error has to be in ours, word by word."""
    said_by_server: tuple[str, ...] = ()
    """In the place of `said`, where the server validates fields: 1.25 and newer."""
    arguments: tuple[str, ...] = field(default=())
    """Instead of ``-f .`` of the files' directory: the whole of what is given with -f."""


def config_map(name: str, body: str = "") -> str:
    return f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}\n{body}"


def _json(name: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "<&>"}})


def _list(name: str, *items: str) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": [json.loads(item) for item in items]})


SCALARS = config_map(
    "scalars",
    "data:\n  y: 'a'\n  'n': \"no\"\n  1: x\n  0x10: x\n  1.5: x\n  date: '2020-01-01'\n"
    "  text: |\n    one\n     two\n\n  folded: >-\n    a\n    b\n  binary: !!binary aGVsbG8=\n  str: !!str 1\n"
    "  local: !foo bar\n",
)
NUMBERS = """apiVersion: apps/v1
kind: Deployment
metadata: {name: numbers}
spec:
  replicas: 0x3
  revisionHistoryLimit: 3.0
  minReadySeconds: 017
  progressDeadlineSeconds: 1e3
  paused: yes
  selector: {matchLabels: {app: numbers}}
  template:
    metadata: {labels: {app: numbers}}
    spec:
      containers: [{name: c, image: i, resources: {limits: {cpu: 1, memory: 64Mi}, requests: {cpu: 0.5}}}]
"""
ANCHORS = """apiVersion: v1
kind: ConfigMap
metadata: &meta
  name: anchors
  labels: &labels {app: x, tier: "1"}
  annotations:
    <<: *labels
    app: y
data: {a: &a text, b: *a}
"""


def _shop() -> str:
    """An application as people write them: a namespace, accounts, roles, configuration, eight parts with Services."""
    parts = [
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {team: web}}\n",
        "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: shop, namespace: shop}\n",
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: shop, namespace: shop}\n"
        'rules:\n- apiGroups: [""]\n  resources: [configmaps, secrets]\n  verbs: [get, list, watch]\n',
        "apiVersion: rbac.authorization.k8s.io/v1\nkind: RoleBinding\nmetadata: {name: shop, namespace: shop}\n"
        "roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: shop}\n"
        "subjects: [{kind: ServiceAccount, name: shop, namespace: shop}]\n",
        "apiVersion: v1\nkind: Secret\nmetadata: {name: shop, namespace: shop}\nstringData: {password: hunter2}\n"
        "type: Opaque\n",
        "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: shop, namespace: shop}\n"
        "spec: {minAvailable: 50%, selector: {matchLabels: {app: shop}}}\n",
        "apiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {name: shop, namespace: shop}\nspec:\n  rules:\n"
        "  - host: shop.example.com\n    http:\n      paths:\n      - path: /\n        pathType: Prefix\n"
        "        backend: {service: {name: part-0, port: {number: 80}}}\n",
    ]
    for number in range(8):
        name = f"part-{number}"
        parts.append(
            f"apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\nspec:\n"
            f"  selector: {{app: shop, part: {name}}}\n  ports:\n  - {{name: http, port: 80, targetPort: http}}\n"
        )
        parts.append(
            f"""apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
  namespace: shop
  labels: {{app: shop, part: {name}}}
spec:
  replicas: {number + 1}
  selector:
    matchLabels: {{app: shop, part: {name}}}
  template:
    metadata:
      labels: {{app: shop, part: {name}}}
    spec:
      serviceAccountName: shop
      containers:
      - name: main
        image: registry.example.com/shop/{name}:1.{number}
        args: ["--listen=:8080", --verbose]
        env:
        - {{name: PASSWORD, valueFrom: {{secretKeyRef: {{name: shop, key: password}}}}}}
        - name: SCRIPT
          value: |
            set -e
            echo "{name}"
        ports: [{{name: http, containerPort: 8080}}]
        readinessProbe:
          httpGet: {{path: /ready, port: http}}
        resources:
          limits: {{cpu: 500m, memory: 128Mi}}
      volumes:
      - name: scratch
        emptyDir: {{}}
"""
        )
    return "---\n".join(parts)


HELM = (
    "---\n# Source: app/templates/empty.yaml\n---\n# Source: app/templates/config.yaml\n"
    + config_map("helm-a", "data:\n  # a comment\n  key: value # another\n")
    + "---\n# Source: app/templates/none.yaml\n\n\n---\n# Source: app/templates/second.yaml\n"
    + config_map("helm-b", "  labels:\n    helm.sh/chart: app-1.2.3\n    app.kubernetes.io/managed-by: Helm\n")
    + "---\n"
)
INVALID_SERVICE = "apiVersion: v1\nkind: Service\nmetadata: {name: x}\nspec: {ports: [{port: 70000}, {port: 80}]}\n"
CLUSTER_ROLE = (
    "apiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s, namespace: x}\nrules: []\n"
)

CASES = (
    Case("one", {"a.yaml": config_map("one", "data: {k: v}\n")}),
    Case("json", {"a.json": _json("json")}),
    Case("json-stream", {"a.json": _json("js-1") + _json("js-2") + "\n\n" + _json("js-3")}),
    Case("json-in-yaml", {"a.yaml": _json("jy-1") + "\n---\n" + _json("jy-2") + "\n"}, more=True),
    Case("scalars", {"a.yaml": SCALARS}),
    Case("numbers", {"a.yaml": NUMBERS}),
    Case("anchors", {"a.yaml": ANCHORS}),
    Case("separators", {"a.yaml": f"---\n---\n{config_map('sep-1')}---\n\n---\n{config_map('sep-2')}---\n---\n"}),
    Case("windows", {"a.yaml": f"{config_map('win-1')}---\n{config_map('win-2')}".replace("\n", "\r\n")}),
    Case("utf8-mark", {"a.yaml": b"\xef\xbb\xbf" + config_map("mark").encode()}),
    Case("utf16-le", {"a.yaml": b"\xff\xfe" + (UTF16 % "le").encode("utf-16-le")}),
    Case("utf16-be", {"a.yaml": b"\xfe\xff" + (UTF16 % "be").encode("utf-16-be")}),
    Case("empty", {"a.yaml": ""}, said=("error: no objects passed to create",)),
    Case("comments", {"a.yaml": "# nothing\n---\n# here\n"}, said=("error: no objects passed to create",)),
    Case("null", {"a.yaml": "null\n"}, said=("error: no objects passed to create",)),
    Case("list", {"a.json": _list("l", _json("list-1"), _json("list-2"))}),
    Case("list-in-list", {"a.json": _list("l", _json("ll-1"), _list("m", _json("ll-2")), _json("ll-3"))}, more=True),
    Case(
        "typed-list",
        {"a.yaml": "apiVersion: v1\nkind: ConfigMapList\nitems:\n- metadata: {name: tl-1}\n- metadata: {name: tl-2}\n"},
    ),
    Case(
        "directory",
        {"b.yaml": config_map("dir-b"), "a.json": _json("dir-a"), "c.txt": "x", "sub/d.yml": config_map("dir-d")},
    ),
    Case(
        "recursive",
        {"b.yaml": config_map("rec-b"), "a/z.yml": config_map("rec-z"), "c/d/e.json": _json("rec-e")},
        ("-R",),
    ),
    Case(
        "two-files",
        {"x.yaml": config_map("two-x"), "w.yaml": config_map("two-w")},
        arguments=("x.yaml,w.yaml", "x.yaml"),
        said=('Error from server (AlreadyExists): error when creating "x.yaml": configmaps "two-x" already exists',),
    ),
    Case("odd-suffix", {"manifest.txt": config_map("odd")}, arguments=("manifest.txt",)),
    Case("stdin-and-file", {"x.yaml": config_map("std-x")}, stdin=config_map("std-in"), arguments=("-", "x.yaml")),
    Case(
        "selector",
        {"a.yaml": config_map("sel-a", "  labels: {app: a}\n") + "---\n" + config_map("sel-b")},
        ("-l", "app=a"),
    ),
    Case(
        "generate",
        {"a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: gen-}\n"},
        ("--dry-run=client",),
    ),
    Case("cluster-scoped", {"a.yaml": CLUSTER_ROLE % "scoped"}),
    Case("namespace-flag", {"a.yaml": config_map("nsf")}, ("-n", "kube-public")),
    Case(
        "namespace-conflict",
        {"a.yaml": config_map("nsc", "  namespace: default\n")},
        ("-n", "kube-public"),
        said=('the namespace from the provided object "default" does not match the namespace "kube-public".',),
    ),
    Case(
        "namespace-missing",
        {"a.yaml": config_map("nsm")},
        ("-n", "nowhere"),
        said=('Error from server (NotFound): error when creating "a.yaml": namespaces "nowhere" not found',),
    ),
    Case(
        "unknown-kind",
        {
            "a.yaml": config_map("uk-1")
            + "---\napiVersion: v1\nkind: Nope\nmetadata: {name: x}\n---\n"
            + config_map("uk-2")
        },
        said=('no matches for kind "Nope" in version "v1"',),
    ),
    Case(
        "broken-middle",
        {"a.yaml": config_map("bm-1") + "---\nkind: [\n---\n" + config_map("bm-2")},
        more=True,
        said=("error parsing a.yaml: ", "did not find expected node content"),
    ),
    Case("no-kind", {"a.yaml": "apiVersion: v1\nmetadata: {name: x}\n"}, said=("a.yaml",)),
    Case(
        "label-number", {"a.yaml": config_map("ln", "  labels: {a: 1}\n")}, said=('error: unable to decode "a.yaml": ',)
    ),
    Case(
        "unknown-field",
        {"a.yaml": config_map("uf", "foo: bar\n")},
        said=('ValidationError(ConfigMap): unknown field "foo" in io.k8s.api.core.v1.ConfigMap',),
        said_by_server=('cannot be handled as a ConfigMap: strict decoding error: unknown field "foo"',),
    ),
    Case(
        "wrong-types",
        {"a.yaml": "apiVersion: v1\nkind: Pod\nmetadata: {name: wt}\nspec: {containers: {a: b}, hostNetwork: 1}\n"},
        said=('invalid type for io.k8s.api.core.v1.PodSpec.containers: got "map", expected "array"',),
        said_by_server=("cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",),
    ),
    Case(
        "missing-field",
        {"a.yaml": "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: mf}\nspec: {replicas: 1}\n"},
        said=('missing required field "selector" in io.k8s.api.apps.v1.DeploymentSpec',),
        said_by_server=('The Deployment "mf" is invalid: ', "* spec.selector: Required value"),
    ),
    Case("unknown-ignored", {"a.yaml": config_map("ui", "foo: bar\n")}, ("--validate=false",)),
    Case(
        "invalid",
        {"a.yaml": INVALID_SERVICE},
        said=('The Service "x" is invalid: ', "* spec.ports[0].port: Invalid value: 70000"),
    ),
    Case(
        "invalid-name",
        {"a.yaml": config_map("BAD_")},
        said=('The ConfigMap "BAD_" is invalid: metadata.name: Invalid value',),
    ),
    Case(
        "large",
        {"a.yaml": config_map("large", f"data: {{k: {'x' * (2 << 20)}}}\n")},
        said=('ConfigMap "large" is invalid',),
    ),
    Case("helm", {"a.yaml": HELM}),
    Case("shop", {"a.yaml": _shop()}),
    Case("save-config", {"a.yaml": config_map("saved", "data: {k: '<&> é'}\n")}, ("--save-config",)),
    Case("output-name", {"a.yaml": config_map("on-1") + "---\n" + config_map("on-2")}, ("-o", "name")),
    Case("output-yaml", {"a.yaml": SCALARS + "---\n" + _shop()}, ("-o", "yaml", "--dry-run=client")),
    Case("output-json", {"a.yaml": NUMBERS}, ("-o", "json", "--dry-run=client")),
    Case(
        "output-jsonpath",
        {"a.yaml": _shop()},
        ("-o", 'jsonpath={.kind}/{.metadata.name} {.spec.ports[*].port}{"\\n"}', "--dry-run=client"),
    ),
    Case("dry-run-server", {"a.yaml": config_map("drs")}, ("--dry-run=server",)),
    Case("nothing-there", {}, arguments=("missing.yaml",), said=('error: the path "missing.yaml" does not exist',)),
    Case(
        "bad-output",
        {"a.yaml": config_map("bo")},
        ("-o", "nope"),
        said=('unable to match a printer suitable for the output format "nope"',),
    ),
    Case(
        "bad-dry-run",
        {"a.yaml": config_map("bd")},
        ("--dry-run=maybe",),
        said=("error: Invalid dry-run value (maybe).",),
    ),
    Case("extra-args", {"a.yaml": config_map("ea")}, ("more",), said=("error: Unexpected args: [more]",)),
)
