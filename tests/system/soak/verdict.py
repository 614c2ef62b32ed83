"""Judges outcomes: right, explained by an event that met just this client, or unexplained. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from kubeproxy.model import Scheduler
from tests.system.soak.clients import IMPATIENT, PATIENCE_S, Outcome
from tests.system.soak.event_record import Chronicle, Kill, Span, State
from tests.system.soak.schedule import BY_NAME

LIVE_S = 3.0
"""The latest time after which a change is in force."""
BACK_S = 6.0
"""The same after a time without an API server or control process: the daemon reconnects within five seconds."""
LATE_S = 5.0
"""A slower answer needs an explanation as a failure does. Two lost packets of a handshake are three seconds."""
LATE_LARGE_S = 10.0
"""The same for a transfer of up to 4 MB each way, on a busy machine."""
REFUSED = "ConnectionRefusedError"
UNREACHABLE = ("OSError(113", "OSError(101")
"""EHOSTUNREACH and ENETUNREACH: errors of a connection that was never open."""
RESCUED_S = 0.5
"""The longest time from a refusal that reaches a client to its outcome."""
FORWARDING_S = 6.0
"""The latest time after which Services take the userspace path because the node does not forward."""
KILL_S = 0.2
"""The longest time that a kill of a process takes."""
NOTICED_S = 3.0
"""The longest time until a client on a long connection notices that it is cut."""
ROBBED_S = 1.0
"""The longest effect of missing rules on a client, after they are there again."""
UDP_BACK_S = 3.0
"""The longest time without an answer for a client that sends every second, once the way is there."""
ARRIVAL_S = 1.0
"""A client that comes later than that does not meet a process that was superseded."""
GRACE_SLACK_S = 1.0
CLOSING_S = 2.0
"""The longest time from cutting the last connections to the end of a process. It reaps its workers meanwhile."""
REPAIR_S = 5.0
"""The longest time from a foreign removal of our rules to their repair. It allows for a busy machine."""


class Verdict:
    """Compares outcomes with a chronicle. `grace_s` is the grace period of the processes."""

    def __init__(self, chronicle: Chronicle, *, grace_s: float) -> None:
        self._chronicle = chronicle
        self._grace_s = grace_s

    def of(self, seen: Outcome) -> str | None:
        """Empty: the outcome is right. Otherwise its explanation; None: there is none."""
        if seen.error:
            return next(self._why_failed(seen), None)
        if seen.kind not in ("long", "large") and seen.pod not in self._possible(seen):
            return None
        if self._is_astray(seen):
            return None
        # The time of a long connection after its first answer is not limited.
        if seen.kind != "long" and seen.ended - seen.began > (LATE_LARGE_S if seen.kind == "large" else LATE_S):
            return next(self._why_late(seen), None)
        return ""

    def _why_failed(self, seen: Outcome) -> Iterator[str]:
        if "other bytes" in seen.error or "too many" in seen.error:
            return
        if seen.kind == "udp":
            # The endpoints of the service may change at any time: only the way there can be missing.
            ways = (*self._chronicle.gaps, *self._chronicle.robbed)
            for span in ways:
                if span.meets(seen.heard - UDP_BACK_S, seen.heard):
                    yield f"{span.what}, and datagrams do not wait"
            missing = seen.began
            for span in sorted((*ways, *self._without_kernel_path(seen)), key=lambda span: span.begin):
                if span.begin <= missing + UDP_BACK_S:
                    missing = max(missing, span.end)
            if missing > seen.began and missing >= seen.heard - UDP_BACK_S:
                yield "one reason after the other, and datagrams do not wait"
            if self._may_take("userspace", seen):
                for kill in self._chronicle.kills:
                    if seen.heard - UDP_BACK_S <= kill.killed <= seen.ended:
                        yield "its worker was killed, perhaps"
            return
        yield from self._why_unservable(seen)
        if REFUSED in seen.error or seen.error.startswith(UNREACHABLE):
            yield from self._why_unrescued(seen)
        else:
            # Only an open connection can be cut.
            yield from self._why_cut(seen)
        for span in self._chronicle.robbed:
            lost = max(span.begin, seen.began)
            felt = span.meets(seen.began, seen.ended) and seen.ended <= _tried_again(lost, span.end) + ROBBED_S
            # The client's kernel refuses an answer that nothing translated. The client does not notice: it waits.
            if felt or (seen.error == IMPATIENT and span.meets(*(seen.ended - PATIENCE_S + s for s in (-1, 1)))):
                yield "a foreign program had removed our rules"

    def _without_kernel_path(self, seen: Outcome) -> Iterator[Span]:
        """When a client's datagrams may have been lost on the kernel path."""
        if "kernel" not in self._paths(seen):
            return
        if seen.host == "client":
            yield from self._chronicle.unforwarded
        for fault in (fault for pod in self._possible(seen) for fault in self._faults(pod, seen)):
            for span in self._chronicle.unattended:
                if span.meets(fault.begin, fault.end):
                    both = max(span.begin, fault.begin), min(span.end, fault.end)
                    yield Span(both[0], f"an endpoint was dead, and the rescue did not work ({span.what})", "", both[1])

    def _why_unservable(self, seen: Outcome) -> Iterator[str]:
        """Reasons why the service itself was not served for a moment. (Steady ones always are.)"""
        if BY_NAME[seen.place].steady:
            return
        for state in self._states(seen):
            if state.pods is None:
                yield "the service was not there"
            elif not state.pods:
                yield "the service had no endpoints"
            elif all(self._dead(pod, seen) for pod in state.pods):
                yield "all endpoints of the service were dead"

    def _dead(self, pod: int, seen: Outcome) -> bool:
        return any(self._faults(pod, seen))

    def _faults(self, pod: int, seen: Outcome) -> Iterator[Span]:
        """What was wrong with a pod during the client's attempt."""
        for span in self._chronicle.faults:
            meets = span.target == str(pod) and span.meets(seen.began, seen.ended)
            if meets and (span.what != "shun" or seen.host == "client"):
                yield span

    def _why_unrescued(self, seen: Outcome) -> Iterator[str]:
        """Reasons why a refusal by an endpoint reached the client: the kernel led it there, and the rescue was off."""
        if not self._may_take("kernel", seen):
            return
        refusing = any(fault.what != "silence" for pod in self._possible(seen) for fault in self._faults(pod, seen))
        for span in self._chronicle.inert:
            if refusing and span.begin <= seen.ended <= span.end + RESCUED_S:
                yield f"an endpoint was dead, and the rescue did not work ({span.what})"

    def _may_take(self, path: str, seen: Outcome) -> bool:
        """Whether the client may have taken this data path."""
        return path == seen.path if seen.path else path in self._paths(seen)

    def _paths(self, seen: Outcome) -> set[str]:
        """The data paths that a client may have taken when it came."""
        until = seen.heard or seen.ended
        begin, policies = self.unsure_since(seen.began), self._chronicle.policies
        ends = [policy.since for policy in policies[1:]] + [until]
        found = {
            policy.data_path
            for policy, end in zip(policies, ends, strict=True)
            if policy.since <= until and end >= begin
        }
        # By the kernel, when failed connections are rescued, or are not yet known not to be.
        paths = found | {"kernel", "userspace"} if "auto" in found else found
        counting = {state.scheduler is Scheduler.LEAST_CONNECTIONS for state in self._states(seen)}
        if counting == {True}:
            return {"userspace"}
        elsewhere = (
            not BY_NAME[seen.place].steady
            or True in counting
            or any(
                span.meets(seen.began - LIVE_S, until)
                for span in (*self._chronicle.robbed, *self._chronicle.without_slots)
            )
            or any(
                span.begin <= until and seen.began <= self._known_after(span.end)
                for span in self._chronicle.unforwarded
            )
        )
        return (paths | {"userspace"} if elsewhere else paths) - {"auto"}

    def _is_astray(self, seen: Outcome) -> bool:
        """Whether it took a data path that nothing had chosen. A UDP flow stays where it is."""
        return bool(seen.path) and seen.kind != "udp" and seen.path not in self._paths(seen)

    def _why_cut(self, seen: Outcome) -> Iterator[str]:
        began, ended = seen.began, seen.ended
        for fault in self._chronicle.faults:
            done = max(fault.done, fault.begin + KILL_S)
            killed = fault.what == "kill" and began <= done and fault.begin <= ended
            its = int(fault.target) in ({seen.pod} if seen.pod >= 0 else self._possible(seen))
            if killed and its and ended <= self._noticed(done, seen):
                yield "the backend was killed"
        if not self._may_take("userspace", seen):
            return  # its bytes did not depend on any process
        for kill in self._chronicle.kills:
            if (seen.host, seen.port) in kill.ports and began <= kill.killed and kill.stopped <= ended:
                yield "its worker was killed"
            elif seen.pod < 0 and self._may_come(seen, kill) and kill.stopped <= ended <= kill.killed + NOTICED_S:
                yield "it waited to be accepted by a worker that was killed"
        for retired in self._chronicle.retired:
            # A client after the order to end has as long as the clients before it, but not all of the grace period.
            late = retired.signalled and not 0.0 < seen.heard <= retired.since
            served_out = late or retired.ended >= retired.until + self._grace_s - GRACE_SLACK_S
            in_time = began <= (retired.ended - 0.8 if retired.signalled else retired.until + ARRIVAL_S)
            if served_out and in_time and retired.ended - CLOSING_S <= ended <= self._noticed(retired.ended, seen):
                yield "it was open longer than a process that ends waits for"

    def _may_come(self, seen: Outcome, kill: Kill) -> bool:
        """Whether one of its attempts may have reached a worker after its clients were listed."""
        ways = (*self._chronicle.gaps, *self._chronicle.robbed)
        tries_again = any(span.meets(seen.began, kill.stopped) for span in ways)
        return seen.began <= kill.killed + 0.3 and (seen.began >= kill.stopped - 0.1 or tries_again)

    def _noticed(self, cut: float, seen: Outcome) -> float:
        """When the last client notices that it was cut. Without our rules, or without forwarding on the kernel path, no
        reset reaches the client; it gets one when it sends again."""
        ways = list(self._chronicle.robbed)
        if seen.host == "client" and self._may_take("kernel", seen):
            ways += self._chronicle.unforwarded
        return max([cut, *(_tried_again(cut, span.end) for span in ways if span.meets(cut, cut))]) + NOTICED_S

    def _why_late(self, seen: Outcome) -> Iterator[str]:
        yield from (f"late: {why}" for why in self._why_unservable(seen))
        for span in (*self._chronicle.gaps, *self._chronicle.robbed):
            if span.meets(seen.began, seen.ended) and self._waited_until(span.end, seen):
                yield f"late: {span.what}"
        for fault in self._chronicle.faults:
            # Only if the endpoint had answered the dial: a silent one is passed over.
            silent = fault.what in ("silence", "shun") and int(fault.target) == seen.pod
            if silent and fault.meets(seen.began, seen.ended) and self._waited_until(fault.end, seen):
                yield "late: the backend was silent"
        if self._may_take("userspace", seen):
            for kill in self._chronicle.kills:
                if seen.began <= kill.killed <= seen.ended and self._waited_until(kill.killed, seen):
                    yield "late: a worker was killed"
        if "kernel" in self._paths(seen):  # at first: a later attempt may have taken the other
            yield from self._why_late_by_kernel(seen)

    def _why_late_by_kernel(self, seen: Outcome) -> Iterator[str]:
        faults = [fault for pod in self._possible(seen) for fault in self._faults(pod, seen)]
        for span in self._chronicle.unattended:
            for fault in faults:
                met = span.meets(seen.began, seen.ended) and fault.meets(span.begin, span.end)
                if met and self._waited_until(min(span.end, fault.end), seen):
                    yield f"late: an endpoint was dead, and the rescue did not work ({span.what})"
        for fault in faults:
            # It answers others, so it stays, and the client's own attempts choose another.
            if fault.what == "shun" and self._waited_until(fault.end, seen):
                yield "late: an endpoint did not answer this client"
        for span in self._chronicle.unforwarded:
            known = seen.path != "kernel" and seen.began > self._known_after(span.begin)
            met = seen.host == "client" and span.meets(seen.began, seen.ended)
            if met and not known and self._waited_until(span.end, seen):
                yield f"late: {span.what}"

    def _known_after(self, change: float) -> float:
        """When the daemon knows at the latest that the node forwards, or does not, any more."""
        known = change + FORWARDING_S
        for away in sorted(self._chronicle.blind, key=lambda away: away.begin):
            if away.target != "api" and away.meets(change, known):
                known = max(known, away.end + FORWARDING_S)
        return known

    def _waited_until(self, way: float, seen: Outcome) -> bool:
        """Whether it was answered as soon as possible, once there was a way."""
        next_try = way + UDP_BACK_S if seen.kind == "udp" else _tried_again(seen.began, way)
        return seen.ended <= next_try + LATE_S

    def _possible(self, seen: Outcome) -> set[int]:
        """The pods that may have answered."""
        return {pod for state in self._states(seen) for pod in state.pods or ()}

    def _states(self, seen: Outcome) -> list[State]:
        """The states of a service that may have been in force during the client's attempt."""
        begin = self.unsure_since(seen.began)
        states = self._chronicle.services[seen.place]
        ends = [state.since for state in states[1:]] + [seen.ended]
        return [state for state, end in zip(states, ends, strict=True) if state.since <= seen.ended and end >= begin]

    def unsure_since(self, now: float) -> float:
        """The time since which changes may not be in force yet."""
        since = now - LIVE_S
        for span in sorted(self._chronicle.blind, key=lambda span: -span.begin):
            if span.begin - LIVE_S <= since <= span.end + BACK_S - LIVE_S:
                since = span.begin - LIVE_S
        return since


def _tried_again(lost: float, way: float) -> float:
    """When the last client that lost a packet has tried again. There was no way until then, and a kernel pauses twice
    as long after each attempt."""
    return 2 * way - lost


@dataclass(slots=True)
class Tally:
    """The sum of all outcomes."""

    right: Counter[str] = field(default_factory=Counter)
    """By kind."""
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[Outcome] = field(default_factory=list)
    paths: Counter[str] = field(default_factory=Counter)
    """Answered clients by path, kind and host."""
    words: Counter[str] = field(default_factory=Counter)
    slowest: Outcome | None = None
    """Of the short ones."""
    longest_gap_s: float = 0.0
    """Between two answers from steady services to one host."""


def tally(verdict: Verdict, outcomes: Iterable[Outcome], *, quiet: Sequence[Span] = ()) -> Tally:
    """Judge all outcomes. `quiet`: the spans without traffic."""
    result = Tally()
    last: dict[str, float] = {}
    for seen in sorted(outcomes, key=lambda it: it.ended):
        why = verdict.of(seen)
        if why is None:
            result.unexplained.append(seen)
        elif why:
            result.explained[f"{seen.kind}: {why}"] += 1
        else:
            result.right[seen.kind] += 1
            result.paths[f"{seen.path or 'either'} path, IPv{seen.family}, from {seen.host}"] += seen.kind != "opened"
        result.words[seen.kind] += seen.words
        if seen.kind == "short" and not seen.error and BY_NAME[seen.place].steady:
            if result.slowest is None or seen.ended - seen.began > result.slowest.ended - result.slowest.began:
                result.slowest = seen
            before = last.get(seen.host, seen.ended)
            if not any(pause.meets(before, seen.ended) for pause in quiet):
                result.longest_gap_s = max(result.longest_gap_s, seen.ended - before)
            last[seen.host] = seen.ended
    return result


def slow_repairs(chronicle: Chronicle) -> list[str]:
    """Removals of our rules that a running process did not repair in time."""
    found = []
    for span in chronicle.robbed:
        away = [it for it in chronicle.blind if it.target != "api" and it.meets(span.begin, span.end)]
        alone_s = sum(min(it.end, span.end) - max(it.begin, span.begin) for it in away)
        if (took_s := span.end - span.begin - alone_s) > REPAIR_S:
            found.append(f"{span.what}, and were not there again for {took_s:.1f} s")
    return found


def spans_text(spans: Iterable[Span], begin: float) -> str:
    """Text that helps to find the cause of an unexplained outcome."""
    return ", ".join(f"{span.what} {span.target} {span.begin - begin:.2f}..{span.end - begin:.2f}" for span in spans)
