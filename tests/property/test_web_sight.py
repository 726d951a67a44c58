"""No answer to a visitor has a name from a namespace that the visitor may not read."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from builders import a_container, a_pod
from vgpu_api.core import Pod
from vgpu_api.errors import VgpuError
from vgpu_api.v1alpha1 import VGPUClaim
from vgpu_operator.engine import events
from vgpu_operator.insight.priorities import Priorities
from vgpu_operator.ledger import ClaimKey
from vgpu_operator.web import views
from vgpu_operator.web.mirror import Mirror
from vgpu_operator.web.sight import Sight
from vgpu_operator.web.what_if import documents, what_if
from web_world import a_holder, a_mirror, a_waiter

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SPACES = ("qaspace", "qbspace", "qcspace", "qdspace")
POD = (
    "{kind: Pod, metadata: {name: asks, namespace: %s}, spec: {priority: 9, containers: [{name: a, "
    "image: x, resources: {limits: {nvidia.com/gpu: 2, nvidia.com/gpumem: 16000}}}]}}"
)


def names_of(space: str, number: int) -> list[str]:
    """Return names that contain their namespace; none of them is a part of another."""
    return [f"{space}-claim-{number}x", f"{space}-pod-{number}x"]


def _pod_of(claim: VGPUClaim) -> Pod:
    """Return the running pod of a claim, which may be preempted."""
    reserved, allocation = claim.status.reserved_for, claim.status.allocation
    assert reserved is not None
    assert allocation is not None
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1024}
    return a_pod(
        reserved.pod_name,
        namespace=claim.metadata.namespace or "",
        uid=reserved.pod_uid,
        node=allocation.node_name,
        containers=[a_container(limits=limits)],
    )


def asked(mirror: Mirror, sight: Sight, keys: list[ClaimKey], spaces: tuple[str, ...]) -> list[Any]:
    """Return all answers of the page, including refusals."""
    query = views.Query(size=views.LARGEST_PAGE)
    questions = [
        lambda: views.fleet(mirror, sight),
        lambda: views.nodes(mirror, sight, query),
        lambda: views.claims(mirror, sight, query),
        *(lambda name=name: views.node(mirror, sight, name) for name in ("node-0", "node-1")),
        *(lambda key=key: views.claim(mirror, sight, key, now=NOW) for key in keys),
        *(lambda s=s: what_if(mirror, sight, documents(POD % s), Priorities()) for s in spaces),
    ]
    answers = []
    for question in questions:
        try:
            answers.append(question())
        except VgpuError as error:
            answers.append(str(error))
    return answers


@given(
    claims=st.lists(
        st.tuples(st.sampled_from(SPACES), st.booleans(), st.integers(0, 3)), max_size=12
    ),
    readable=st.frozensets(st.sampled_from(SPACES)),
    devices=st.booleans(),
    nodes=st.booleans(),
)
@example(  # hidden pods would be preempted
    claims=[("qbspace", False, 0), ("qbspace", False, 2)],
    readable=frozenset({"qaspace"}),
    devices=True,
    nodes=True,
)
def test_no_name_of_a_namespace_that_may_not_be_read_is_in_any_answer(
    claims: list[tuple[str, bool, int]], readable: frozenset[str], devices: bool, nodes: bool
) -> None:
    """Hidden names stay hidden for all claims, rights and questions about readable namespaces.

    A refusal repeats the namespace that was asked for, so only readable ones are requested; and the
    readable claims must be listed, so that an empty answer does not pass.
    """
    made = []
    for number, (space, waits, place) in enumerate(claims):
        name, pod = names_of(space, number)
        uuid, node = f"GPU-{place // 2}-{place % 2}", f"node-{place // 2}"
        made.append(
            a_waiter(name, namespace=space, memory="12Gi")
            if waits
            else a_holder(name, namespace=space, pod=pod, uuid=uuid, node=node, memory_mib=1024)
        )
    mirror = a_mirror(claims=made)
    mirror.observe(events.BudgetsListed())
    for claim in made:
        if claim.status.allocation is not None:
            mirror.observe(events.PodObserved(_pod_of(claim)))
    sight = Sight("visitor", devices=devices, nodes=nodes, namespaces=readable)
    keys = [key for key in mirror.claims if key.namespace in readable]
    text = json.dumps(asked(mirror, sight, keys, tuple(sorted(readable))))
    for space in set(SPACES) - readable:
        assert space not in text
    for key in keys:
        assert key.name in text


@given(space=st.sampled_from(SPACES), name=st.sampled_from(["there", "not-there"]))
def test_a_refusal_does_not_tell_whether_the_claim_exists(space: str, name: str) -> None:
    """The answers for a hidden claim and for one that does not exist are identical."""
    mirror, sight = a_mirror(claims=[a_waiter("there", namespace=space)]), Sight("v", devices=True)
    try:
        views.claim(mirror, sight, ClaimKey(space, name), now=NOW)
    except VgpuError as error:
        said = str(error)
    assert said == f'user "v" cannot list vgpuclaims.vgpu.dev in namespace "{space}"'
