"""`limpet iam`: the policy of a role, for the cloud to enforce."""

from __future__ import annotations

from typing import Annotated

import typer

from limpet.cli.options import UrlOption
from limpet.cli.output import lines, print_json, say
from limpet.errors import Invalid

EPILOG = lines(
    "Example: least-privilege credentials for workers",
    "$ limpet iam --provider aws --role worker -u s3://acme/prod > worker.json",
    "$ aws iam put-role-policy --role-name pi --policy-name limpet --policy-document file://worker.json",
    "Example: a key that can only push to one queue, and read its results",
    "$ limpet iam --provider aws --role pusher --queue emails -u s3://acme/prod",
    "Example: the compactor of one workspace",
    "$ limpet iam --provider aws --role compactor --tenant acme --workspace prod -u s3://acme-data",
    "Exit codes: 0 printed; 2 wrong usage.",
)


TenantOption = Annotated[
    str | None,
    typer.Option(
        "--tenant",
        metavar="NAME",
        envvar="LIMPET_TENANT_ID",
        show_default=False,
        help="Only what lies below this tenant and --workspace.",
    ),
]
WorkspaceOption = Annotated[
    str | None,
    typer.Option("--workspace", metavar="NAME", envvar="LIMPET_WORKSPACE_ID", show_default=False, help="See --tenant."),
]
RoleOption = Annotated[
    str,
    typer.Option(
        "--role",
        metavar="ROLE",
        show_default=False,
        help="One of api, compactor, compiler, pusher, reader, supervisor, tables, worker.",
    ),
]


def iam(
    provider: Annotated[str, typer.Option("--provider", metavar="aws|gcp", show_default=False, help="The cloud.")],
    role: RoleOption,
    bucket: Annotated[
        str | None, typer.Option("--bucket", metavar="NAME", show_default=False, help="The bucket, without a URL.")
    ] = None,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="PATH", show_default=False, help="Where the fleet is in --bucket.")
    ] = "",
    queue: Annotated[
        list[str] | None,
        typer.Option(
            "--queue", metavar="NAME", show_default=False, help="Only this queue (worker, pusher); repeatable."
        ),
    ] = None,
    conditions: Annotated[
        bool | None,
        typer.Option(
            "--conditions/--no-conditions",
            show_default=False,
            help="AWS: demand If-Match or If-None-Match for locks and heads. Left out where another endpoint is named.",
        ),
    ] = None,
    tenant: TenantOption = None,
    workspace: WorkspaceOption = None,
    project: Annotated[
        str, typer.Option("--project", metavar="ID", help="Google Cloud: the project of the custom roles.")
    ] = "PROJECT",
    member: Annotated[
        str, typer.Option("--member", metavar="WHO", help="Google Cloud: such as serviceAccount:NAME@....")
    ] = "MEMBER",
    url: UrlOption = None,
) -> None:
    """Print a policy that grants what a role needs in a bucket, as JSON. Nothing is sent to the cloud.

    Where the cloud's policy language cannot express a role exactly, what the policy grants beyond it is listed on
    stderr.
    """
    from limpet.store.policies import PROVIDERS, Scope, aws_policy, gcp_policy, is_amazon, notes, root_of, scope_of
    from limpet.store.roles import check_queues, check_role

    known = check_role(role)
    roots = check_queues(known, queue or ())
    cloud = next((each for each in PROVIDERS if each == provider), None)
    if cloud is None:
        raise Invalid(f"there is no provider {provider!r}", hint=f"use one of {', '.join(PROVIDERS)}")
    if bucket is not None:
        fleet = Scope(bucket, prefix.strip("/"))
    elif url is not None and not prefix:
        fleet = scope_of(url, cloud)
    else:
        raise Invalid("no bucket was given", hint="say --url s3://bucket/prefix, or --bucket and --prefix")
    scope = fleet.at(root_of(tenant, workspace))
    if cloud == "aws":
        amazon = is_amazon(None if bucket is not None else url)
        print_json(aws_policy(known, scope, roots, conditional=amazon if conditions is None else conditions))
    else:
        print_json(gcp_policy(known, scope, roots, project=project, member=member))
    for note in notes(cloud, known, roots):
        say(f"note: {note}", err=True)
