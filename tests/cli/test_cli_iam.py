"""`limpet iam`: pure JSON on stdout, what it cannot say on stderr."""

from __future__ import annotations

import json

import pytest

from cli.harness import Here
from limpet.store.policies import Scope, aws_policy, gcp_policy


def test_a_policy_for_aws_from_the_fleets_url(here: Here) -> None:
    done = here("iam", "--provider", "aws", "--role", "worker", "-u", "s3://acme/prod?region=eu-west-1")
    assert done.code == 0
    assert json.loads(done.out) == aws_policy("worker", Scope("acme", "prod"))
    assert done.err.startswith("note: AWS lets * match /")


def test_bucket_and_prefix_as_options(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPET_URL", "./elsewhere")
    done = here("iam", "--provider", "aws", "--role", "reader", "--bucket", "acme", "--prefix", "/prod/")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == aws_policy("reader", Scope("acme", "prod"))


def test_one_workspace(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = aws_policy("api", Scope("acme", "prod/north%20co/main"))
    options = ("iam", "--provider", "aws", "--role", "api", "-u", "s3://acme/prod")
    assert json.loads(here(*options, "--tenant", "north co", "--workspace", "main").out) == wanted
    monkeypatch.setenv("LIMPET_TENANT_ID", "north co")
    assert here(*options).err.startswith("limpet: a tenant and a workspace go together")
    monkeypatch.setenv("LIMPET_WORKSPACE_ID", "main")
    assert json.loads(here(*options).out) == wanted


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
