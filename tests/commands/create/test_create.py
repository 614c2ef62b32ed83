"""``kubeproxy create`` against a server of this process: order, errors, exit status, and what the server then holds."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from kubeproxy.commands.create import send
from kubeproxy.commands.create.options import DryRun, Validation
from kubeproxy.commands.interruption import SIGNALLED
from tests.commands.create.conftest import Run, config_map
from tests.support.apiserver import V1_20, V1_36, ApiServer, Fault, Version
from tests.support.apiserver.answers import hang_up

NAMESPACE = "---\napiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n"
DEFINITION = """---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {plural: widgets, kind: Widget}
  scope: Namespaced
  versions: [{name: v1}]
"""
WIDGET = "---\napiVersion: example.com/v1\nkind: Widget\nmetadata: {name: w}\nspec: {size: 3}\n"
PATH = "/api/v1/namespaces/default/configmaps"


def made(server: ApiServer, name: str) -> Mapping[str, Any]:
    """Return a ConfigMap as the server has it."""
    found = server.cluster.get("configmaps", "default", name)
    assert found is not None
    return found


async def test_objects_are_created_in_their_order_each_with_a_line(server: ApiServer, run: Run) -> None:
    deployment = "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web}\nspec: {}\n"
    done = await run(server, config_map("b") + deployment + config_map("a"))
    assert (done.status, done.err) == (0, "")
    assert done.lines == ["configmap/b created", "deployment.apps/web created", "configmap/a created"]
    assert server.cluster.names("configmaps") == ["b", "a"]
    stored = made(server, "b")
    assert stored["metadata"]["namespace"] == "default"
    assert stored["metadata"]["managedFields"][0]["manager"] == "kubeproxy-create"


async def test_a_broken_document_costs_none_of_the_others(server: ApiServer, run: Run) -> None:
    text = config_map("a") + "---\nkind: [\n" + config_map("b") + "---\n- 1\n" + config_map("c")
    done = await run(server, text)
    assert done.status == 1
    assert server.cluster.names("configmaps") == ["a", "b", "c"]
    first, second = done.err.splitlines()
    assert first.startswith("error parsing it.yaml: did not find expected node content (document 2, line ")
    assert second.startswith('unable to decode "it.yaml": found a list; allowed: an object')


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=["new", "old"])
async def test_bad_objects_are_reported_with_their_place_and_the_others_created(
    server: ApiServer, run: Run, version: Version
) -> None:
    server.version = version
    text = "".join(
        [
            config_map("first"),
            "---\napiVersion: v1\nkind: Gadget\nmetadata: {name: g}\n",
            config_map("field", foo="bar"),
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: twice\n  labels:\n    a: x\n    a: z\n",
            config_map("label", metadata={"labels": {"a": 1}}),
            config_map("BAD"),
            config_map("large", data={"x": "x" * (2 << 20)}),
            config_map("list", data=["x"]) if version is V1_20 else "",
            config_map("last"),
        ]
    )
    done = await run(server, text)
    assert done.status == 1
    assert server.cluster.names("configmaps") == ["first", "last"]
    said = done.err
    assert 'no matches for kind "Gadget" in version "v1" (document 2, line 4)\nensure CRDs are installed first' in said
    assert 'unknown field "foo"' in said
    assert 'line 16: key "a" is there twice' in said
    assert "metadata.labels.a: found the number 1; allowed: a text; put it in quotes" in said
    assert 'Error from server (Invalid): error when creating "it.yaml": ConfigMap "BAD" is invalid' in said
    assert "must have at most 1048576 bytes" in said
    assert ('got "array", expected "map"' in said) is (version is V1_20)


async def test_one_error_alone_is_worded_as_kubectl_words_it(server: ApiServer, run: Run) -> None:
    assert (await run(server, config_map("BAD"))).err == (
        'The ConfigMap "BAD" is invalid: metadata.name: Invalid value: "BAD": a lowercase RFC 1123 subdomain\n'
    )
    await run(server, config_map("a"))
    again = await run(server, config_map("a"))
    assert again.status == 1
    assert again.err == (
        'Error from server (AlreadyExists): error when creating "it.yaml": configmaps "a" already exists\n'
    )
    assert (await run(server, config_map("n"), client={"namespace": "gone"})).err == (
        'Error from server (NotFound): error when creating "it.yaml": namespaces "gone" not found\n'
    )


async def test_nothing_in_a_file_is_an_error(server: ApiServer, run: Run) -> None:
    for text in ("", "# only a comment\n---\n---\n", "null\n"):
        done = await run(server, text)
        assert (done.status, done.err) == (1, "error: no objects passed to create\n")


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=["new", "old"])
async def test_unknown_fields_are_an_error_a_warning_or_nothing(server: ApiServer, run: Run, version: Version) -> None:
    server.version = version
    strict = await run(server, config_map("a", foo="bar"))
    assert strict.status == 1
    assert 'unknown field "foo"' in strict.err
    warned = await run(server, config_map("a", foo="bar"), validation=Validation.WARN)
    assert warned.status == 0
    assert warned.err.startswith("Warning: ")
    assert 'unknown field "foo"' in warned.err
    ignored = await run(server, config_map("b", foo="bar"), validation=Validation.IGNORE)
    assert (ignored.status, ignored.err) == (0, "")
    assert "foo" not in made(server, "b")


async def test_the_cached_schema_is_asked_for_again_before_a_field_is_refused(server: ApiServer, run: Run) -> None:
    server.version = V1_20
    assert (await run(server, config_map("a"))).status == 0
    assert (await run(server, config_map("b"))).status == 0
    asked = [it for it in server.requests if it.path == "/openapi/v2"]
    assert len(asked) == 1
    assert (await run(server, config_map("c", foo=1))).status == 1
    assert len([it for it in server.requests if it.path == "/openapi/v2"]) == 2


# Discovery


async def test_discovery_is_cached_and_asked_again_for_what_is_missing(server: ApiServer, run: Run) -> None:
    await run(server, config_map("a"))
    server.requests.clear()
    await run(server, config_map("b"))
    (asked,) = server.requests
    assert (asked.method, asked.path) == ("POST", PATH)
    assert asked.query == {"fieldManager": "kubeproxy-create", "fieldValidation": "Strict"}
    done = await run(server, WIDGET)
    assert 'no matches for kind "Widget" in version "example.com/v1"' in done.err
    assert "/apis" in [it.path for it in server.requests]


@pytest.mark.parametrize("version", [V1_36, V1_20], ids=["new", "old"])
async def test_a_resource_defined_in_the_same_file_is_waited_for(server: ApiServer, run: Run, version: Version) -> None:
    server.version, server.cluster.established_s = version, 0.4
    done = await run(server, DEFINITION + WIDGET + config_map("after"))
    assert (done.status, done.err) == (0, "")
    assert done.lines == [
        "customresourcedefinition.apiextensions.k8s.io/widgets.example.com created",
        "widget.example.com/w created",
        "configmap/after created",
    ]


async def test_a_definition_that_never_gets_ready_is_reported(
    server: ApiServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeproxy.commands.create.established.WAIT_S", 0.3)
    server.cluster.established_s = 60
    done = await run(server, DEFINITION + WIDGET + config_map("after"))
    assert done.status == 1
    assert 'no matches for kind "Widget"' in done.err
    assert server.cluster.names("configmaps") == ["after"]


# Namespaces


async def test_a_namespace_flag_must_not_contradict_the_object(server: ApiServer, run: Run) -> None:
    text = config_map("a", metadata={"namespace": "other"}) + config_map("b") + NAMESPACE
    done = await run(server, text, client={"namespace": "default"})
    assert done.status == 1
    assert done.lines == ["configmap/b created", "namespace/shop created"]
    assert done.err.startswith(
        'error: the namespace from the provided object "other" does not match the namespace "default".'
        " You must pass '--namespace=other' to perform this operation."
    )


async def test_a_namespace_that_is_being_deleted_takes_nothing_new(server: ApiServer, run: Run) -> None:
    await run(server, NAMESPACE)
    server.cluster.put("namespaces", {"metadata": {"name": "shop"}, "status": {"phase": "Terminating"}})
    done = await run(server, config_map("a"), client={"namespace": "shop"})
    assert done.status == 1
    assert "because it is being terminated" in done.err


# Lists, selectors, several files


async def test_lists_are_flattened_breadth_first(server: ApiServer, run: Run) -> None:
    def item(name: str) -> dict[str, object]:
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}

    inner = {"apiVersion": "v1", "kind": "List", "items": [item("c"), item("d")]}
    typed = {"apiVersion": "v1", "kind": "ConfigMapList", "items": [{"metadata": {"name": "e"}}]}
    outer = {"apiVersion": "v1", "kind": "List", "items": [item("a"), inner, {"kind": "Nope"}, item("b"), typed]}
    done = await run(server, json.dumps(outer))
    assert done.status == 1
    assert server.cluster.names("configmaps") == ["a", "b", "c", "d", "e"]
    assert "(document 1, line 1, items[2])" in done.err


async def test_a_selector_leaves_the_others_out(server: ApiServer, run: Run) -> None:
    text = config_map("a", metadata={"labels": {"app": "x"}}) + config_map("b")
    assert (await run(server, text, selector="app in (x,y)")).lines == ["configmap/a created"]
    wrong = await run(server, text, selector="app in")
    assert wrong.status == 1
    assert 'the provided selector "app in" is not valid' in wrong.err


async def test_wrong_arguments_are_reported_before_any_creation(server: ApiServer, run: Run, tmp_path: Path) -> None:
    good = tmp_path / "good.yaml"
    good.write_text(config_map("a"))
    done = await run(server, filenames=(str(good), "/nowhere/x.yaml", "-", "-"), selector="!!")
    assert done.status == 1
    assert len(done.err.splitlines()) == 3
    assert server.counts["create"] == 0


# Output


async def test_what_is_printed_of_objects(server: ApiServer, run: Run) -> None:
    generated = "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: g-}\n"
    assert (await run(server, config_map("n"), output="name")).out == "configmap/n\n"
    assert (await run(server, generated)).out == "configmap/g-00003 created\n"
    assert (await run(server, generated, dry_run=DryRun.CLIENT)).out == "configmap/<unknown> created (dry run)\n"
    assert (await run(server, generated, dry_run=DryRun.SERVER)).out == "configmap/g-00004 created (server dry run)\n"
    path = await run(server, config_map("p"), output="jsonpath={.kind} {.metadata.name}{'\\n'}")
    assert path.out == "ConfigMap p\n"
    both = await run(server, config_map("y") + config_map("z"), output="yaml")
    assert [each["metadata"]["name"] for each in yaml.safe_load_all(both.out)] == ["y", "z"]
    assert "managedFields" not in both.out
    shown = await run(server, config_map("j"), output="json", show_managed_fields=True)
    assert json.loads(shown.out)["metadata"]["managedFields"]


async def test_a_dry_run_of_the_client_sends_nothing(server: ApiServer, run: Run) -> None:
    done = await run(server, config_map("a") + config_map("b", foo=1), dry_run=DryRun.CLIENT, output="name")
    assert done.out == "configmap/a\n"
    assert 'unknown field "foo"' in done.err
    assert [it for it in server.requests if it.method == "POST"] == []


async def test_what_is_kept_in_annotations(server: ApiServer, run: Run) -> None:
    text = config_map("a", data={"k": "<&"}, metadata={"resourceVersion": "7"})
    done = await run(server, text, save_config=True, record="kubeproxy create --filename=x")
    assert done.status == 0, "no version was sent"
    kept = made(server, "a")["metadata"]["annotations"]["kubectl.kubernetes.io/last-applied-configuration"]
    assert kept == (
        '{"apiVersion":"v1","data":{"k":"\\u003c\\u0026"},"kind":"ConfigMap","metadata":{"annotations":'
        '{"kubernetes.io/change-cause":"kubeproxy create --filename=x"},"name":"a","namespace":"default"}}\n'
    )


async def test_warnings_are_printed_once_and_may_count_as_errors(server: ApiServer, run: Run) -> None:
    def warned(name: str) -> str:
        return config_map(name, metadata={"annotations": {"warn": 'old "version"'}})

    done = await run(server, warned("a") + warned("b"))
    assert (done.status, done.err) == (0, 'Warning: old "version"\n')
    strict = await run(server, warned("c"), warnings_as_errors=True)
    assert strict.status == 1
    assert strict.err.endswith("error: 1 warning received\n")


# Beyond kubectl


async def test_sorting_puts_first_what_others_need(server: ApiServer, run: Run) -> None:
    server.cluster.established_s = 0.2
    account = "---\napiVersion: v1\nkind: ServiceAccount\nmetadata: {name: s, namespace: shop}\n"
    text = WIDGET + config_map("c", metadata={"namespace": "shop"}) + account + DEFINITION + NAMESPACE
    done = await run(server, text, sort=True)
    assert (done.status, done.err) == (0, "")
    assert [line.partition("/")[0] for line in done.lines] == [
        "namespace",
        "customresourcedefinition.apiextensions.k8s.io",
        "serviceaccount",
        "configmap",
        "widget.example.com",
    ]


async def test_existing_objects_may_be_skipped(server: ApiServer, run: Run) -> None:
    await run(server, config_map("a", data={"k": "old"}))
    done = await run(server, config_map("a", data={"k": "new"}) + config_map("b"), skip_existing=True)
    assert (done.status, done.err) == (0, "")
    assert done.lines == ["configmap/a already exists, skipped", "configmap/b created"]
    assert made(server, "a")["data"] == {"k": "old"}
    printed = await run(server, config_map("a"), skip_existing=True, output="jsonpath={.data.k}")
    assert printed.out == "old"


async def test_parallel_creation_keeps_the_order_of_lines_and_of_errors(server: ApiServer, run: Run) -> None:
    server.inject(Fault(kind="slow", method="POST", delay_s=0.02, times=-1))
    names = [f"c{number}" if number % 7 else f"BAD{number}" for number in range(40)]
    done = await run(server, "".join(config_map(name) for name in names), parallel=8)
    assert done.status == 1
    assert done.lines == [f"configmap/{name} created" for name in names if name.islower()]
    assert [name for name in names if not name.islower()] == [
        line.split('ConfigMap "')[1].split('"')[0] for line in done.err.splitlines()
    ]
    assert 2 <= server.most_at_once <= 8


async def test_parallel_creation_waits_for_what_others_depend_on(server: ApiServer, run: Run) -> None:
    server.inject(Fault(kind="slow", method="POST", delay_s=0.05, times=-1))
    server.cluster.established_s = 0.1
    text = config_map("before") + NAMESPACE + config_map("in", metadata={"namespace": "shop"}) + DEFINITION + WIDGET
    done = await run(server, text + config_map("same") + config_map("same"), parallel=16)
    assert done.status == 1  # the second of the same name, and nothing else
    assert done.err.count("\n") == 1
    assert 'configmaps "same" already exists' in done.err
    assert len(done.lines) == 6


# A server in trouble


async def test_the_server_is_given_the_time_that_it_asks_for(server: ApiServer, run: Run) -> None:
    server.inject(Fault(method="POST", status=429, retry_after="0", times=2))
    server.inject(Fault(method="POST", status=503, retry_after="0"))
    done = await run(server, config_map("a") + config_map("b"))
    assert (done.status, done.err) == (0, "")
    assert server.cluster.names("configmaps") == ["a", "b"]


async def test_a_failure_without_retry_after_is_an_error_of_that_object(server: ApiServer, run: Run) -> None:
    server.inject(Fault(method="POST"))
    done = await run(server, config_map("a") + config_map("b"))
    assert (done.status, done.out) == (1, "configmap/b created\n")
    assert done.err == 'Error from server (InternalError): error when creating "it.yaml": injected\n'


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_create_that_was_cut_off_is_carried_out_once(server: ApiServer, run: Run, carried_out: bool) -> None:
    server.inject(Fault(kind="drop", method="POST", carried_out=carried_out))
    done = await run(server, config_map("a") + config_map("b"))
    assert (done.status, done.err) == (0, "")
    assert done.lines == ["configmap/a created", "configmap/b created"]
    assert server.counts["create"] == 2


async def test_a_failed_answer_to_a_create_that_was_carried_out_is_found_out(server: ApiServer, run: Run) -> None:
    server.inject(Fault(method="POST", status=504, retry_after="0", carried_out=True))
    done = await run(server, config_map("a"))
    assert (done.status, done.err, done.out) == (0, "", "configmap/a created\n")
    assert server.counts["create"] == 1


async def test_an_older_object_is_not_taken_for_the_one_that_was_cut_off(server: ApiServer, run: Run) -> None:
    await run(server, config_map("a"))
    old = made(server, "a")
    old = {**old, "metadata": {**old["metadata"], "creationTimestamp": "2020-01-01T00:00:00Z"}}
    server.cluster.put("configmaps", old, version=server.cluster.version + 1)
    server.inject(Fault(kind="drop", method="POST"))
    done = await run(server, config_map("a"))
    assert done.status == 1
    assert "already exists" in done.err


@pytest.mark.parametrize("carried_out", [True, False])
async def test_a_generated_name_that_was_cut_off_is_not_sent_again(
    server: ApiServer, run: Run, carried_out: bool
) -> None:
    server.inject(Fault(kind="drop", method="POST", carried_out=carried_out))
    done = await run(server, "apiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: g-}\n" + config_map("b"))
    assert done.status == 1
    assert "whether configmap/g-* was created is not known, and it is not sent again" in done.err
    assert len([it for it in server.requests if it.method == "POST"]) <= 2
    assert server.counts["create"] == int(carried_out) + server.cluster.names("configmaps").count("b")


async def test_a_server_that_comes_back_is_waited_for(server: ApiServer, run: Run) -> None:
    tasks = []

    async def vanish(request: web.Request) -> None:
        server.before_post = None
        hang_up(request)
        tasks.append(asyncio.get_running_loop().create_task(_away(server, 1.0)))
        await asyncio.Event().wait()

    server.before_post = vanish
    done = await run(server, config_map("a") + config_map("b"))
    assert (done.status, done.err) == (0, "")
    assert server.counts["create"] == 2


async def _away(server: ApiServer, seconds: float) -> None:
    await server.stop()
    await asyncio.sleep(seconds)
    await server.start()


async def test_a_server_that_stays_away_ends_the_command_with_what_was_not_created(
    server: ApiServer, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(send, "COMES_BACK_S", 0.5)
    monkeypatch.setattr(send.Sender.__init__, "__kwdefaults__", {"comes_back_s": 0.5})
    tasks = []

    async def vanish(request: web.Request) -> None:
        if server.counts["create"] == 1:
            hang_up(request)
            tasks.append(asyncio.get_running_loop().create_task(server.stop()))
            await asyncio.Event().wait()

    server.before_post = vanish
    done = await run(server, "".join(config_map(name) for name in "abcd"))
    await asyncio.gather(*tasks)
    assert done.status == 1
    assert done.lines == ["configmap/a created"]
    assert "whether configmap/b was created is not known" in done.err
    assert "1 created; not created: " in done.err
    assert "configmap/c" in done.err


async def test_errors_from_before_the_server_is_missed_are_printed_too(server: ApiServer, run: Run) -> None:
    await run(server, config_map("first"))  # what the server serves is in the cache now
    await server.stop()
    done = await run(server, "kind: [\n" + WIDGET)
    assert done.status == 1
    first, second = done.err.splitlines()
    assert first.startswith("error parsing it.yaml: ")
    assert second.startswith("The connection to the server ")


async def test_a_missing_server_is_reported_as_by_kubectl(server: ApiServer, run: Run) -> None:
    host = server.url.removeprefix("http://")
    await server.stop()
    done = await run(server, config_map("a"))
    assert done.status == 1
    assert done.err.splitlines()[0] == (
        f"The connection to the server {host} was refused - did you specify the right host or port?"
    )


@pytest.mark.parametrize(
    ("body", "code"), [("<html>proxy</html>", 201), ("{", 200), ("[]", 200), ("\udcff\udcfe", 201), ("\n", 200)]
)
async def test_an_invalid_answer_is_reported(server: ApiServer, run: Run, body: str, code: int) -> None:
    server.inject(Fault(method="POST", status=code, body=body, content_type="text/html"))
    done = await run(server, config_map("a") + config_map("b"))
    assert (done.status, done.lines) == (1, ["configmap/b created"])
    assert "answered" in done.err


async def test_an_error_page_is_reported_as_by_kubectl(server: ApiServer, run: Run) -> None:
    page = "<html>bad gateway</html>"
    server.inject(Fault(method="POST", status=502, body=page, content_type="text/html"))
    done = await run(server, config_map("a"))
    assert done.err == (
        'Error from server (InternalError): error when creating "it.yaml": an error on the server'
        f' ("<html>bad gateway</html>") has prevented the request from succeeding (post {PATH})\n'
    )


async def test_a_token_that_is_no_longer_good_ends_the_command(server: ApiServer, run: Run) -> None:
    await run(server, config_map("a"))
    server.tokens = {"another"}
    done = await run(server, "".join(config_map(name) for name in "bcd"))
    assert done.status == 1
    assert done.err.startswith("error: You must be logged in to the server (")
    assert len([it for it in server.requests if it.method == "POST"]) <= 3


async def test_a_token_file_is_read_again_after_a_refusal(server: ApiServer, run: Run, tmp_path: Path) -> None:
    token, config = tmp_path / "token", tmp_path / "kubeconfig"
    token.write_text("old\n")
    document = {
        "current-context": "it",
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
        "clusters": [{"name": "it", "cluster": {"server": server.url}}],
        "users": [{"name": "it", "user": {"tokenFile": "token"}}],
    }
    config.write_text(json.dumps(document))
    server.tokens = {"old"}

    async def expire(request: web.Request) -> None:
        server.tokens = {"new"}
        token.write_text("new\n")

    server.before_post = expire
    flags = {"server": "", "token": "", "kubeconfig": str(config)}
    done = await run(server, config_map("a"), client=flags)
    assert (done.status, done.err) == (0, "")


async def test_an_interrupt_tells_what_was_created_and_what_was_not(server: ApiServer, run: Run) -> None:
    async def interrupt(request: web.Request) -> None:
        if server.counts["create"] == 2:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.2)

    server.before_post = interrupt
    done = await run(server, "".join(config_map(name) for name in "abcdef"))
    assert done.status == SIGNALLED + signal.SIGINT
    assert done.lines == ["configmap/a created", "configmap/b created", "configmap/c created"]
    assert done.err.startswith("interrupted: 3 created; not created: ")
    assert "document 4" in done.err or "document 3" in done.err
    assert server.cluster.names("configmaps") == ["a", "b", "c"]
