"""`limpet iam`: pure JSON on stdout, what it cannot say on stderr."""

from __future__ import annotations

import json

import pytest

from cli.harness import Here
from limpet.kernel.store.policies import Scope, aws_policy, gcp_policy
from limpet.kernel.store.roles import check_queues


def test_a_policy_for_aws_from_the_fleets_url(here: Here) -> None:
    done = here("iam", "--provider", "aws", "--role", "worker", "-u", "s3://acme/prod?region=eu-west-1")
    assert done.code == 0
    assert json.loads(done.out) == aws_policy("worker", Scope("acme", "prod"), conditional=True)
    assert done.err.startswith("note: AWS lets * match /")


def test_bucket_and_prefix_as_options(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPET_URL", "./elsewhere")
    done = here("iam", "--provider", "aws", "--role", "reader", "--bucket", "acme", "--prefix", "/prod/")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == aws_policy("reader", Scope("acme", "prod"))


def test_one_workspace(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = aws_policy("api", Scope("acme", "prod/north%20co/main"), conditional=True)
    options = ("iam", "--provider", "aws", "--role", "api", "-u", "s3://acme/prod")
    assert json.loads(here(*options, "--tenant", "north co", "--workspace", "main").out) == wanted
    monkeypatch.setenv("LIMPET_TENANT_ID", "north co")
    assert here(*options).err.startswith("limpet: a tenant and a workspace go together")
    monkeypatch.setenv("LIMPET_WORKSPACE_ID", "main")
    assert json.loads(here(*options).out) == wanted


def test_only_some_queues(here: Here) -> None:
    options = (
        "iam",
        "--provider",
        "aws",
        "--role",
        "pusher",
        "-u",
        "s3://acme/prod",
        "--queue",
        "emails",
        "--queue",
        "a b",
    )
    roots = check_queues("pusher", ["emails", "a b"])
    assert roots == ("queues/emails", "queues/a%20b")
    assert json.loads(here(*options).out) == aws_policy("pusher", Scope("acme", "prod"), roots, conditional=True)
    done = here("iam", "--provider", "gcp", "--role", "worker", "--bucket", "acme", "--queue", "emails")
    wanted = gcp_policy("worker", Scope("acme"), roots[:1], project="PROJECT", member="MEMBER")
    assert json.loads(done.out) == wanted
    assert "queues/emails/slots/" in done.err


def test_other_servers_do_not_know_the_condition_keys(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("iam", "--provider", "aws", "--role", "api", "-u")
    plain, amazons = (aws_policy("api", Scope("acme"), conditional=each) for each in (False, True))
    assert plain != amazons
    assert json.loads(here(*options, "s3://acme").out) == amazons
    assert json.loads(here(*options, "s3://acme", "--no-conditions").out) == plain
    elsewhere = "s3://acme?endpoint=http://127.0.0.1:8333"
    assert json.loads(here(*options, elsewhere).out) == plain
    assert json.loads(here(*options, elsewhere, "--conditions").out) == amazons
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:8333")
    assert json.loads(here(*options, "s3://acme").out) == plain


def test_a_policy_for_google_cloud(here: Here) -> None:
    who = ("--project", "p", "--member", "serviceAccount:x@p.iam.gserviceaccount.com")
    done = here("iam", "--provider", "gcp", "--role", "compactor", "-u", "gs://acme/prod", *who)
    assert done.code == 0
    assert json.loads(done.out) == gcp_policy("compactor", Scope("acme", "prod"), project=who[1], member=who[3])
    assert done.err == (
        "note: on Google Cloud a write over an object deletes it, so this key can also delete: manifests/\n"
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--provider", "azure", "--role", "api", "-u", "s3://a"), "there is no provider 'azure'"),
        (("--provider", "aws", "--role", "root", "-u", "s3://a"), "there is no role 'root'"),
        (("--provider", "aws", "--role", "api", "-u", "gs://a"), "gs://a is no bucket of aws"),
        (("--provider", "aws", "--role", "api", "-u", "./fleet"), "'./fleet' is not a bucket's URL"),
        (("--provider", "aws", "--role", "api"), "no bucket was given"),
        (("--provider", "aws", "--role", "api", "--prefix", "x", "-u", "s3://a"), "no bucket was given"),
        (("--provider", "aws", "--role", "api", "--bucket", "a", "--queue", "x"), "the role api cannot be narrowed"),
        (("--provider", "aws", "--role", "api", "--bucket", "a*"), "'a*' has characters"),
        (("--provider", "aws", "--role", "api", "--bucket", "a", "--prefix", "../x"), "the key '../x'"),
    ],
)
def test_wrong_usage(here: Here, options: tuple[str, ...], said: str) -> None:
    done = here("iam", *options)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"limpet: {said}")
    assert "\nhint: " in done.err


@pytest.mark.parametrize("missing", ["--provider", "--role"])
def test_both_are_needed(here: Here, missing: str) -> None:
    given = {"--provider": "aws", "--role": "api"}
    del given[missing]
    done = here("iam", *(word for pair in given.items() for word in pair), "-u", "s3://a")
    assert (done.code, done.out) == (2, "")
    assert missing in done.err
