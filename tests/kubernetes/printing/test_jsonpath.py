"""kubectl's JSONPath; the expected texts are kubectl's."""

from __future__ import annotations

import pytest

from kubeproxy.kubernetes.printing.jsonpath import JsonPath
from kubeproxy.model.errors import ConfigError

POD = {
    "kind": "Pod",
    "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": "x", "b": "c"}},
    "spec": {
        "n": 3,
        "on": True,
        "none": None,
        "containers": [
            {"name": "a", "image": "i1", "ports": [{"port": 80}, {"port": 81}]},
            {"name": "b", "image": "i2", "ports": []},
        ],
    },
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{.kind}", "Pod"),
        (".metadata.name", "p"),
        ("kind", "Pod"),
        ("{.kind}/{.metadata.name}{'\\n'}", "Pod/p\n"),
        ("{.spec.containers[*].name}", "a b"),
        ("{.spec.containers[0].image} {.spec.containers[-1].image}", "i1 i2"),
        ("{.spec.containers[0:1].name}", "a"),
        ("{.spec.containers[::2].name}", "a"),
        ("{range .spec.containers[*]}{.name}={.image};{end}", "a=i1;b=i2;"),
        ("{range .spec.containers[*]}{.name}:{range .ports[*]}{.port},{end};{end}", "a:80,81,;b:;"),
        ('{.spec.containers[?(@.name=="b")].image}', "i2"),
        ("{.spec.containers[?(@.ports[0].port>79)].name}", "a"),
        ("{.spec.containers[?(@.name!='b')].name}", "a"),
        ("{.spec.containers[?(@.image)].name}", "a b"),
        ("{..port}", "80 81"),
        ("{.metadata.labels.app\\.kubernetes\\.io/name}", "x"),
        ("{.metadata.labels['app.kubernetes.io/name']}", "x"),
        ("{.metadata.labels}", '{"app.kubernetes.io/name":"x","b":"c"}'),
        ("{.metadata['name','gone']}", "p"),
        ("{.spec.n} {.spec.on} {.spec.none}.", "3 true ."),
        ("{.gone}", ""),
        ("{$.kind}{@.kind}", "PodPod"),
        ("text", ""),
    ],
)
def test_a_template_is_rendered(template: str, expected: str) -> None:
    assert JsonPath(template).render(POD) == expected


@pytest.mark.parametrize(
    "template",
    ["{", "{.a", "{range .a}", "{end}", "{.a[}", "{.a[x]}", "{.a[?(@.b==]}", "{'a}", "{.a[::0]}", "{.}}{", "{" * 99],
)
def test_what_is_no_template_is_refused(template: str) -> None:
    with pytest.raises(ConfigError, match="error parsing jsonpath"):
        JsonPath(template)
