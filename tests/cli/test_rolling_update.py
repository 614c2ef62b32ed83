"""The command line of ``kubeproxy rolling-update``; what it does is in tests/commands/rolling_update."""

from __future__ import annotations

import click
import pytest

from kubeproxy.cli import main
from kubeproxy.cli.rolling_update import _options, rolling_update
from kubeproxy.commands.rolling_update.options import HELP_HINT, Cleanup, UpdateOptions
from tests.cli.test_completion import proposed


def parsed(*args: str) -> UpdateOptions:
    with rolling_update.make_context("rolling-update", list(args)) as context:
        given = dict(context.params)
        found = _options(given.pop("names"), given)
    assert isinstance(found, UpdateOptions)
    return found


def test_a_deployment_is_told_to_roll_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["rolling-update", "deployment/web", "--image=b"]) == 1
    assert "kubeproxy rollout" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "faults"),
    [
        ([], ["Must specify --filename or --image for new controller", "Must specify the controller to update"]),
        (["web"], ["Must specify --filename or --image for new controller"]),
        (["web", "-f", "a", "--image=b"], ["--filename and --image can not both be specified"]),
        (["web", "-f", "a", "-f", "b"], ["May only specify a single filename for new controller"]),
        (["web", "-f", "a,b"], ["May only specify a single filename for new controller"]),
        (["web", "--rollback", "--image=b"], ["Don't specify --filename or --image on rollback"]),
        (
            ["--rollback", "-f", "b", "--deployment-label-key="],
            [
                "--deployment-label-key can not be empty",
                "Don't specify --filename or --image on rollback",
                "Must specify the controller to update",
            ],
        ),
        (["a", "b", "c", "--image=x"], ["found the arguments a b c; allowed: OLD [NEW] --image=IMAGE, or OLD -f FILE"]),
        (["a", "b", "-f", "x"], ["found the arguments a b; allowed: OLD [NEW] --image=IMAGE, or OLD -f FILE"]),
        (["a", "-f", "x", "--container=c"], ["--container can only be used with --image"]),
        (
            ["a", "--image=x", "--image-pull-policy=Sometimes"],
            ["--image-pull-policy: found 'Sometimes'; allowed: Always, Never or IfNotPresent"],
        ),
        (["a", "--image=x", "--poll-interval=0"], ["--poll-interval must be greater than 0"]),
        (["a", "--image=x", "--timeout=0s"], ["--timeout must be greater than 0"]),
        (
            ["a", "--image=x", "--max-surge=some"],
            ["--max-surge: found 'some'; allowed: a number of pods like 2, or a percentage like 25%"],
        ),
        (
            ["a", "--image=x", "--max-surge=0%"],
            ["one of --max-surge and --max-unavailable must be greater than 0: with both 0 no step is allowed"],
        ),
        (
            ["a", "--rollback", "--cleanup-policy=preserve"],
            ["--cleanup-policy cannot be used with --rollback: the new controller is deleted"],
        ),
    ],
)
def test_all_problems_are_reported_together(
    args: list[str], faults: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.status_of(["rolling-update", *args]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "".join(f"error: {fault}\n{HELP_HINT}\n" for fault in faults)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["web", "--image=x", "--update-period=soon"], "--update-period: found 'soon'"),
        (["web", "--image=x", "--dry-run=server"], "--dry-run=server for rolling-update is not supported"),
        (["web", "--image=x", "--dry-run=yes"], "Invalid dry-run value (yes)"),
        (
            ["web", "--image=x", "--cleanup-policy=keep"],
            "--cleanup-policy: found 'keep'; allowed: delete, rename, preserve",
        ),
        (["web", "--image=x", "--validate=maybe"], "--validate: found 'maybe'"),
        (["web", "--image=x", "--nonsense"], "unknown flag: --nonsense"),
        (["web", "--image=x", "-o", "table", "--server=http://127.0.0.1:1"], "unable to match a printer"),
        (["web", "--image=x", "--server=http://127.0.0.1:1"], "The connection to the server 127.0.0.1:1 was refused"),
        (["web", "-f", "/does/not/exist", "--server=http://127.0.0.1:1"], "The connection to the server 127.0.0.1:1"),
    ],
)
def test_other_mistakes(args: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["rolling-update", *args]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err


def test_defaults_are_kubectls() -> None:
    found = parsed("web", "--image=x")
    assert (found.update_period_s, found.poll_interval_s, found.timeout_s) == (60, 3, 300)
    assert (found.max_surge, found.max_unavailable, found.min_ready_s) == (1, 0, 0)
    assert found.deployment_label_key == "deployment"
    assert found.drain_timeout_s == 30
    assert not found.dry_run


def test_flags_as_go_programs_take_them() -> None:
    found = parsed(
        *("web", "next", "--image", "x", "--update_period=1m30s", "--max-surge", "25%", "--max-unavailable=2"),
        *("--dry-run", "--poll-interval=500ms", "--timeout", "90", "--drain-timeout=0"),
    )
    assert found.names == ("web", "next")
    assert (found.update_period_s, found.poll_interval_s, found.timeout_s, found.drain_timeout_s) == (90, 0.5, 90, 0)
    assert (found.max_surge, found.max_unavailable) == ("25%", 2)
    assert found.dry_run


@pytest.mark.parametrize(
    ("args", "policy"),
    [
        (["web", "--image=x"], Cleanup.RENAME),
        (["web", "next", "--image=x"], Cleanup.DELETE),
        (["web", "-f", "x"], Cleanup.DELETE),
        (["web", "--rollback"], Cleanup.DELETE),
        (["web", "-f", "x", "--cleanup-policy=rename"], Cleanup.RENAME),
        (["web", "--image=x", "--cleanup-policy=preserve"], Cleanup.PRESERVE),
    ],
)
def test_the_cleanup_policy(args: list[str], policy: Cleanup) -> None:
    assert parsed(*args).cleanup_policy is policy


def test_the_old_name_of_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["rollingupdate", "--help"]) == 0
    assert "Replace a ReplicationController by another one" in capsys.readouterr().out
    assert "rollingupdate" not in main.commands.list_commands(click.Context(main.commands))


def test_completion() -> None:
    assert proposed("kubeproxy roll") == ["rolling-update", "rollout"]
    assert "--max-surge" in proposed("kubeproxy rolling-update web --max")
